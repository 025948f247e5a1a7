"""A module of our name in the working folder, and a hook that meets something broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import OURS

CODE = (
    "import torch\n"
    "from mergekit import merge_methods\n"
    "print(torch.ones(1).item(), type(merge_methods.get('ram')).__module__)\n"
)
TAKEN = "has the name of the package mergekit-ram, which is taken from where it is installed"
LEFT = "has the name of the package mergekit-ram, which is not switched on; rename it"


def python_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, which is where it then looks for modules first."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, env=os.environ
    )


@pytest.mark.parametrize("path", ["mergekit_ram.py", "mergekit_ram/__init__.py"])
def test_a_module_of_our_name_is_passed_by_in_one_line(path, tmp_path):
    hiding = tmp_path / path
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("raise RuntimeError('this is not the package')\n")
    result = python_in(tmp_path, "-c", CODE)
    assert result.stdout == "1.0 mergekit_ram.methods\n", result.stderr
    assert result.stderr == f"{hiding} {TAKEN}; rename it\n"


def test_a_script_of_our_name_may_import_us(tmp_path):
    script = tmp_path / "mergekit_ram.py"
    script.write_text(CODE + "from mergekit_ram import count\nprint(count.__module__)\n")
    result = python_in(tmp_path, "mergekit_ram.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("1.0 mergekit_ram.methods\nmergekit_ram.kernels.")


def test_a_module_of_our_name_that_is_there_already_is_left_alone(tmp_path):
    (tmp_path / "mergekit_ram.py").write_text("value = 1\n")
    result = python_in(tmp_path, "-c", "import mergekit_ram\n" + CODE)
    assert result.stdout == "1.0 mergekit.merge_methods.base\n", result.stderr
    assert result.stderr == f"{tmp_path / 'mergekit_ram.py'} {LEFT}\n"


def test_a_folder_of_our_name_without_code_hides_nothing(tmp_path):
    (tmp_path / "mergekit_ram").mkdir()
    result = python_in(tmp_path, "-c", CODE)
    assert result.stdout == "1.0 mergekit_ram.methods\n"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise OSError('cut off')\n", "OSError: cut off"),
        ("raise SystemExit(4)\n", "SystemExit: 4"),
    ],
)
def test_a_broken_hook_costs_one_line(tmp_path, code, reason):
    (tmp_path / "wrapt.py").write_text(code)
    result = python_in(tmp_path, "-c", "import torch\nprint(torch.ones(1).item())")
    assert result.stdout == "1.0\n", result.stderr
    assert result.stderr == f"mergekit-ram could not be switched on: {reason}\n"


def test_status_says_so_where_a_script_has_the_name_of_a_package(tmp_path):
    (tmp_path / "mergekit.py").write_text("import sys\nsys.exit(0)\n")
    result = python_in(tmp_path, *OURS, "status", "--check")
    assert result.returncode == 0, result.stderr
    assert "not importable: SystemExit: 0" in result.stdout
