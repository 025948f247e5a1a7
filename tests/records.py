"""Records of merges."""

from __future__ import annotations

from pathlib import Path

import pytest

from mergekit_ram.record.check import read_record
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord

BOTH = pytest.mark.parametrize("method", ["ram", "ram_plus"])


def record_of(folder: Path) -> OverlapRecord:
    return read_record(folder / RECORD_NAME)


def unfolded(text: str) -> str:
    """Text for a terminal without its line breaks, which depend on the length of paths."""
    return " ".join(text.split())
