"""Workers of the command are forked from a server that has imported everything."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
from joblib.externals.loky.backend import context
from processes import python
from unit_merges import OPTIONS, assert_finished

from mergekit_ram.units import early


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows where a server would be started."""
    found: list[bool] = []
    monkeypatch.setattr(early, "_started", False)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: found.append(True))
    monkeypatch.setattr(early.multiprocessing, "set_forkserver_preload", lambda names: None)
    monkeypatch.setattr(early.sys, "platform", "linux")
    monkeypatch.setattr(early, "SAFE_SINCE", (3,))
    monkeypatch.setattr(early, "_is_the_command", lambda: True)
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("x.yml out", False),
        ("x.yml out --workers 1", False),
        ("x.yml out --workers 2", True),
        ("x.yml out --workers=2 --quiet --out-shard-size 8K", True),
        ("--workers 3 --device cpu x.yml out", True),
        ("x.yml out --workers 2 --units 0:4", True),
        ("x.yml out --workers 2 --cuda", False),
        ("x.yml out --workers 2 --device cuda:1", False),
        ("x.yml out --workers 2 --gpu-rich", False),
        ("x.yml out --low-cpu-memory --workers 2", False),
        ("x.yml out --workers 2 --multi-gpu", False),
        ("x.yml out --workers 2 --engine ray", False),
        ("x.yml out --workers 2 --estimate", False),
        ("x.yml out --workers 2 --finalise", False),
        ("x.yml out --workers two", False),
        ("x.yml out --workers", False),
        ("--help --workers 2", False),
        ("-h --workers 2", False),
        ("", False),
    ],
)
def test_it_is_started_where_several_workers_of_this_machine_will_be(started, arguments, expected):
    early.start_for(arguments.split())
    assert bool(started) is expected


def test_it_is_started_once_and_on_linux_alone(started, monkeypatch):
    for _ in range(2):
        early.start_for(["x.yml", "out", "--workers", "2"])
    assert started == [True]
    monkeypatch.setattr(early, "_started", False)
    monkeypatch.setattr(early.sys, "platform", "darwin")
    early.start_for(["x.yml", "out", "--workers", "2"])
    assert started == [True]


def test_other_programs_that_call_the_command_start_workers_as_joblib_does(started, monkeypatch):
    monkeypatch.undo()
    assert not early._is_the_command()


def test_joblib_has_its_own_way_back_afterwards(started):
    early.start_for(["x.yml", "out", "--workers", "2"])
    before = context.get_start_method()
    with early.used_by_joblib():
        assert context.get_start_method() == "forkserver"
    assert context.get_start_method() == before != "forkserver"


def test_asking_imports_nothing_heavy():
    code = "import sys; from mergekit_ram.units import early; early.start_for(['--workers', '1'])"
    heavy = "{'torch', 'transformers', 'mergekit', 'joblib', 'numpy'}"
    assert python(f"{code}; print(sorted({heavy} & sys.modules.keys()))") == "[]"


INSTALLED = Path(sys.executable).with_name("mergekit-ram")


def run(recipe: Path, out: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """The installed command with two workers, in a working folder."""
    return subprocess.run(
        [INSTALLED, "merge", recipe, out, *OPTIONS, "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=os.environ | environment,
    )


def test_a_merge_by_such_workers_is_the_same(undisturbed, tmp_path):
    done = run(undisturbed.recipe, tmp_path / "out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_finished(tmp_path / "out", undisturbed.weights)
    # Workers plan for themselves, and say nothing again.
    is_ram = "merge_method: ram\n" in undisturbed.recipe.read_text()
    assert (done.stdout + done.stderr).count("is that of mergekit-ram") == is_ram


def test_files_of_the_working_folder_are_no_modules(undisturbed, tmp_path):
    for name in ("yaml", "torch", "mergekit_ram"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working folder')\n")
    done = run(undisturbed.recipe, tmp_path / "out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_finished(tmp_path / "out", undisturbed.weights)


def test_a_numba_that_fails_is_one_line_and_torch_does_the_work(undisturbed, tmp_path):
    (tmp_path / "broken" / "numba").mkdir(parents=True)
    (tmp_path / "broken" / "numba" / "__init__.py").write_text("raise RuntimeError('odd numba')\n")
    path = str(tmp_path / "broken")
    done = run(undisturbed.recipe, tmp_path / "out", tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_finished(tmp_path / "out", undisturbed.weights)
    assert "merging on the CPU in torch" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
