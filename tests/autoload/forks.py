"""Fresh starts of Python at the cost of one: all but mergekit and this package is imported once.

Run as a script it forks a process for every job on its standard input. There torch is imported
again when something asks for it: its modules are back at once, and it calls its entry points at
the end, as it does in a process where it is new.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

IMPORTED_ONCE = (
    "mergekit.scripts.merge_raw_pytorch",
    "mergekit.scripts.multimerge",
    "mergekit.scripts.run_yaml",
    "mergekit_ram.host",
)
FRESH = ("mergekit", "mergekit_ram", "mergekit_ram_hook")
OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "MERGEKIT_RAM_DISABLE": "1"}


class Done(NamedTuple):
    """How a job has ended."""

    returncode: int
    stdout: str
    stderr: str


class Job(NamedTuple):
    """Code for a process where neither torch nor mergekit has been imported."""

    code: str
    arguments: Sequence[str | Path] = ()
    path: str | Path = ""
    """A folder that comes first in ``sys.path``."""


def run_all(jobs: Mapping[str, Job]) -> dict[str, Done]:
    """Run every job, one after another."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(jobs, default=str),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {name: Done(*result) for name, result in json.loads(done.stdout).items()}


class _TorchAgain(MetaPathFinder, Loader):
    """Imports a torch that is there already, up to its entry points."""

    def __init__(self) -> None:
        self.modules = _taken("torch")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        torch = self.modules["torch"]
        self.spec = torch.__spec__
        return torch

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
        sys.modules.update(self.modules)
        if module._is_device_backend_autoload_enabled():
            module._import_device_backends()


def _taken(*packages: str) -> dict[str, ModuleType]:
    """Modules of packages, which are not imported from now on."""
    names = [name for name in sys.modules if name.partition(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}


def _run(job: Job, folder: Path) -> tuple[int, str, str]:
    files = [folder / "stdout", folder / "stderr"]
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os._exit(_execute(job))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, *(file.read_text() for file in files)


def _execute(job: Job) -> int:
    """Execute a job in this process, which ends thereafter without a clean-up."""
    sys.argv[1:], sys.path[0] = job.arguments, job.path
    importlib.invalidate_caches()
    sys.meta_path.insert(0, _TorchAgain())
    try:
        exec(compile(job.code, "<job>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    """Serve the jobs on the standard input."""
    before = {name: os.environ.get(name) for name in OFF}
    os.environ.update(OFF)
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    _taken(*FRESH)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    with tempfile.TemporaryDirectory() as folder:
        results = {
            name: _run(Job(*job), Path(folder)) for name, job in json.load(sys.stdin).items()
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
