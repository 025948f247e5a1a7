"""``mergekit-ram`` where torch or mergekit is absent or broken."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mergekit_ram

COMMAND = "import sys\nfrom mergekit_ram.cli import main\nmain(sys.argv[1:], 'mergekit-ram')"
NEEDED = ("click", "wrapt", "mergekit_ram")
"""What the command itself is made of."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with links to the few packages that are there."""
    folder = tmp_path_factory.mktemp("bare")
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (folder / name).symlink_to(Path(spec.origin).parent)
    return folder


def command(*arguments: str, path: Path, with_packages: bool) -> subprocess.CompletedProcess[str]:
    """Run the command with a folder first on the path, and no installed packages if told so."""
    options = [] if with_packages else ["-S"]
    paths = [str(path)]
    if with_packages and os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return subprocess.run(
        [sys.executable, *options, "-c", COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )


def rows(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines())


def test_help_and_version_need_neither(bare):
    shown = command("--version", path=bare, with_packages=False)
    assert shown.stdout == f"mergekit-ram, version {mergekit_ram.__version__}\n", shown.stderr
    for arguments in (["--help"], ["status", "--help"], ["inspect", "--help"]):
        shown = command(*arguments, path=bare, with_packages=False)
        assert shown.stdout.startswith("Usage: mergekit-ram "), shown.stderr


def test_status_says_what_is_absent(bare):
    shown = rows(command("status", path=bare, with_packages=False))
    assert shown["mergekit-ram"] == mergekit_ram.__version__
    assert shown["torch"] == shown["mergekit"] == shown["numba"] == "not installed"
    assert shown["autoload"] == "off: torch is not installed"
    assert shown["ram"] == shown["ram_plus"] == "nobody: torch is not installed"


def test_status_says_that_torch_is_broken(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so:\\n no such file')\n")
    shown = rows(command("status", "--check", path=tmp_path, with_packages=True))
    problem = "not importable: OSError: libtorch.so: no such file"
    assert shown["torch"].endswith(problem)
    assert shown["autoload"] == f"off: torch is {problem}"
    assert shown["ram"] == f"nobody: torch is {problem}"


def test_status_says_that_mergekit_is_broken(tmp_path):
    (tmp_path / "mergekit.py").write_text("raise ImportError('half an installation')\n")
    shown = rows(command("status", "--check", path=tmp_path, with_packages=True))
    problem = "not importable: ImportError: half an installation"
    assert shown["mergekit"] == f"0.1.5, {problem}"
    assert shown["autoload"].startswith("on: ")
    assert shown["ram"] == f"nobody: mergekit is {problem}"
    assert shown["torch"].startswith("2.")
