"""Records of merges."""

from __future__ import annotations

from pathlib import Path

import pytest

from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord, read_record

BOTH = pytest.mark.parametrize("method", ["ram", "ram_plus"])


def record_of(folder: Path) -> OverlapRecord:
    return read_record(folder / RECORD_NAME)
