"""What a merge will read, write, hold and take, before it is begun."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from mergekit_ram.merges.groups import LoadedGroup, Tokenizers, load_group, map_tensors
from mergekit_ram.tensors import count_group
from mergekit_ram.units.numbering import PlannedUnits, Unit

MEASURED_SECONDS = 1.0
"""Of reading, and of arithmetic."""

PROCESS_BYTES = 500_000_000
"""Of a worker without any tensor: Python, torch, mergekit."""


@dataclass(frozen=True)
class Rates:
    """Bytes per second of this machine, measured on the merge's own tensors."""

    read: float
    count: float


@dataclass(frozen=True)
class Estimate:
    """Sizes in bytes, times in seconds."""

    counting_units: int
    shards: int
    read_counting: int
    read_merging: int
    written: int
    memory: int
    """Of one worker."""
    seconds: float
    """Of one worker."""
    rates: Rates

    def text(self) -> str:
        """What ``mergekit-ram merge --estimate`` prints."""
        rows = (
            ("counting", f"{_size(self.read_counting)} to read, {self.counting_units} units"),
            ("merging", f"{_size(self.read_merging)} to read, {self.shards} units"),
            ("written", f"{_size(self.written)}, and as much free disk is needed"),
            ("memory", f"{_size(self.memory)} per worker at most"),
            ("time", f"about {_duration(self.seconds)} with one worker"),
            (
                "measured",
                f"{_size(self.rates.read)}/s of reading, {_size(self.rates.count)}/s of arithmetic",
            ),
        )
        return "".join(f"{name:<10}{text}\n" for name, text in rows)


def estimate(plan: PlannedUnits) -> Estimate:
    """Measure a second of reading and one of arithmetic, and reckon."""
    rates = _measured(plan)
    counting = sum(unit.read for unit in plan.counts)
    merging = sum(unit.read for unit in plan.shards)
    written = sum(unit.written for unit in plan.shards)
    # Writing is taken to be as fast as reading: both end at the disk.
    seconds = (counting + merging + written) / rates.read + (counting + merging) / rates.count
    return Estimate(
        counting_units=len(plan.counts),
        shards=len(plan.shards),
        read_counting=counting,
        read_merging=merging,
        written=written,
        memory=_memory(plan.units, plan.largest_group),
        seconds=seconds,
        rates=rates,
    )


def _memory(units: Iterable[Unit], largest_group: int) -> int:
    return PROCESS_BYTES + largest_group + max((unit.written for unit in units), default=0)


def _measured(plan: PlannedUnits) -> Rates:
    tokenizers: Tokenizers = {}
    loaded: list[LoadedGroup] = []
    read = 0
    started = time.perf_counter()
    for merge in plan.ledger.merges:
        group = load_group(merge, tokenizers, torch.device("cpu"))
        if group is not None:
            # Copied, since a mapped file is read when its memory is first looked at.
            copied = map_tensors(group.group, torch.clone)
            loaded = [LoadedGroup(copied, group.settings, group.dtype)]
            read += sum(entry.tensor.nbytes for entry in copied.entries)
        if time.perf_counter() - started > MEASURED_SECONDS:
            break
    reading = read / max(time.perf_counter() - started, 1e-9)
    return Rates(read=max(reading, 1.0), count=_counting_rate(loaded) or max(reading, 1.0))


def _counting_rate(loaded: list[LoadedGroup]) -> float:
    if not loaded:
        return 0.0
    group = loaded[0]
    size = sum(entry.tensor.nbytes for entry in group.group.entries)
    # The first call compiles.
    count_group(group.group, group.settings, dtype=group.dtype)
    counted = 0
    started = time.perf_counter()
    while not counted or time.perf_counter() - started < MEASURED_SECONDS:
        count_group(group.group, group.settings, dtype=group.dtype)
        counted += size
    return counted / (time.perf_counter() - started)


def _size(number: float) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e8 else f"{number / 1e6:,.2f} MB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
