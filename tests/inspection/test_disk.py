"""The rows of a sample are asked for before they are read, while they come from a disk."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mergekit.config import MergeConfiguration
from models import Trio

from mergekit_ram import inspect
from mergekit_ram.inspection import disk

PAGE = mmap.PAGESIZE


@given(
    rows=st.sets(st.integers(0, 199), min_size=1),
    width=st.sampled_from([1, 3, 100, 1024, 2048, 2049, 9000]),
    offset=st.sampled_from([0, 1, 1500, 4095]),
)
def test_what_is_asked_for_are_the_pages_of_the_rows(rows, width, offset):
    stored = torch.zeros(200 * width + offset, dtype=torch.uint8)
    tensor = stored[offset:].view(200, width)
    chosen = np.array(sorted(rows, key=lambda row: row % 7))
    wanted = {
        page
        for row in rows
        for page in range(
            tensor[row].data_ptr() // PAGE, (tensor[row].data_ptr() + width - 1) // PAGE + 1
        )
    }
    found = disk.stretches(tensor, chosen)
    assert all(start % PAGE == size % PAGE == 0 for start, size in found)
    asked = [start // PAGE + page for start, size in found for page in range(size // PAGE)]
    assert asked == sorted(wanted)
    assert all(this[0] + this[1] < following[0] for this, following in itertools.pairwise(found))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What the system is asked for: addresses, bytes, what they are needed for."""
    found: list[tuple[int, int, int]] = []

    def advise(*of: int) -> int:
        found.append(of)
        return 0

    monkeypatch.setattr(disk, "_madvise", lambda: advise)
    return found


def look(trio: Trio) -> dict[str, Any]:
    config = MergeConfiguration.model_validate(trio.config("ram_plus"))
    record = inspect(config, sample=0.3, realised=False)
    return record.model_dump(exclude={"seconds"})


def read(monkeypatch: pytest.MonkeyPatch, counts: Iterator[int]) -> None:
    monkeypatch.setattr(disk, "_read_from_disk", lambda: (next(counts), 0))


def test_rows_are_asked_for_as_long_as_the_disk_is_read(trio: Trio, asked, monkeypatch):
    monkeypatch.setattr(disk, "PATIENCE", 1)
    read(monkeypatch, itertools.count())
    record = look(trio)
    # Four models have every tensor.
    assert len(asked) >= 4 * len(record["tensors"])
    assert {how for *_, how in asked} == {mmap.MADV_WILLNEED}


def test_what_is_in_memory_is_asked_for_no_longer(trio: Trio, asked, monkeypatch):
    monkeypatch.setattr(disk, "PATIENCE", 1)
    read(monkeypatch, itertools.repeat(0))
    record = look(trio)
    # Of the first tensor alone, by four models, whose neighbouring rows are asked for together.
    assert 0 < len(asked) <= 4 * math.ceil(0.3 * len(trio.base["model.embed_tokens.weight"]))
    assert len(asked) < 4 * len(record["tensors"])


def test_what_comes_from_the_disk_after_all_is_asked_for_again(trio: Trio, asked, monkeypatch):
    monkeypatch.setattr(disk, "PATIENCE", 1)
    read(monkeypatch, itertools.repeat(0))
    look(trio)
    before = len(asked)
    read(monkeypatch, itertools.chain([0] * 10, itertools.count()))
    look(trio)
    assert len(asked) > 3 * before


@pytest.mark.parametrize("lacks", ["the library", "the function", "the constant"])
def test_without_madvise_the_figures_are_the_same(trio: Trio, monkeypatch, lacks):
    expected = look(trio)

    def load(name: None) -> Any:
        if lacks == "the library":
            raise OSError("no such library")
        return object()

    disk._madvise.cache_clear()
    with monkeypatch.context() as patch:
        if lacks == "the constant":
            patch.delattr(mmap, "MADV_WILLNEED")
        else:
            patch.setattr(disk.ctypes, "CDLL", load)
        assert disk._madvise() is None
        assert look(trio) == expected
    disk._madvise.cache_clear()


def test_rows_that_do_not_lie_together_are_not_asked_for(asked):
    expecting = disk.Disk()
    with expecting.watched():
        expecting.expect(torch.zeros(8, 4).t(), np.arange(4))
        expecting.expect(torch.zeros(4, 0), np.arange(4))
        assert asked == []
        expecting.expect(torch.zeros(8, 4), np.arange(4))
    assert asked
