"""Shared fixtures. No test reaches a model hub."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import settings
from models import Trio

# Kernel examples differ in cost by orders of magnitude; slow machines are no failures.
settings.register_profile("project", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("project")

SLOW = (
    "autoload/",
    "benchmark/",
    "command/test_answers_at_once.py",
    "command/test_architectures.py",
    "command/test_numba_fails.py",
    "documents/test_inspect_document.py",
    "documents/test_python_records.py",
    "documents/test_readme.py",
    "inspection/test_inspect_in_python.py",
    "plan/test_one_merge_one_folder.py",
    "plan/test_output_folder.py",
    "record/test_told.py",
    "show/test_page",
    "test_status",
    "units/",
)
"""Files of tests that take long: processes, browsers, training, or packages of extras."""


def is_slow(path: Path) -> bool:
    """Whether ``pytest -m "not slow"`` leaves a file out."""
    return str(path.relative_to(Path(__file__).parent).as_posix()).startswith(SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out is not imported either: it may need packages of extras."""
    is_left_out = config.getoption("-m") == "not slow" and collection_path.is_file()
    return True if is_left_out and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.path):
            item.add_marker("slow")


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    """A bf16 base and three sparse agents."""
    return Trio(tmp_path)
