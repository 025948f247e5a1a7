"""What a command left in a folder and said, and a process that is killed at a chosen place."""

from __future__ import annotations

from pathlib import Path

import pytest


class Killed(BaseException):
    """In the place of a process that is killed."""


def killed(*_: object, **__: object) -> None:
    """In the place of any function."""
    raise Killed


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that were logged."""
    return [record.getMessage() for record in caplog.records if record.name == "mergekit_ram"]
