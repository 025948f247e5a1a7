"""Intervals around the figures of a sample: every record again without each group of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mergekit_ram.inspection.sampling import GROUPS, Sample
from mergekit_ram.inspection.strata import Spread
from mergekit_ram.record.schema import (
    AgentRecord,
    Interval,
    Intervals,
    LayerRecord,
    PairRecord,
    TensorRecord,
    ThresholdAgent,
)

OF_THREE = 3.0
"""What never happened in n trials happens, 95 in 100 times, less often than once in n / 3."""

GIVEN_FIELDS = frozenset({"weight", "numel", "epsilon"})
"""Numbers of a record that are known and not estimated."""

SHARES = frozenset(
    {
        "change",
        "density",
        "jaccard",
        "overlap_share",
        "rescale_effect",
        "sign_conflicts",
        "unique_share",
    }
)
SIGNED = frozenset({"shared_energy", "whole_rescale", "realised_rescale"}) | {
    f"retained{method}" for method in ("", "_ram", "_ram_plus", "_mean")
}
"""Figures that can be below zero: agents may pull against each other."""

Array = npt.NDArray[np.float64]
Record = TypeVar("Record", AgentRecord, PairRecord, ThresholdAgent)
Changed = TypeVar("Changed", LayerRecord, TensorRecord)


def with_intervals(
    sample: Sample | None, filled: int, records: Callable[[int], Sequence[Record]]
) -> tuple[Record, ...]:
    """The records of all that was seen, each with its intervals where that is a sample.

    Args:
        sample: how the rows were drawn, if they were.
        filled: in how many groups rows were drawn.
        records: all of a kind, by the version of the sums that they come from.
    """
    whole = records(0)
    if sample is None:
        return tuple(whole)
    left = zip(*(records(1 + group) for group in range(GROUPS)), strict=True)
    return tuple(
        record.model_copy(update={"interval": _intervals(sample, filled, record, others)})
        for record, others in zip(whole, left, strict=True)
    )


def with_change_intervals(
    sample: Sample | None, seen: Sequence[Spread], records: Sequence[Changed], changes: Array
) -> tuple[Changed, ...]:
    """The same for records whose only estimate is their ``change``.

    Args:
        sample: how the rows were drawn, if they were.
        seen: what each rests on.
        records: of all that was seen.
        changes: their change, ``[versions, records]``.
    """
    if sample is None:
        return tuple(records)
    groups = np.array([spread.groups for spread in seen])
    parameters = np.array([spread.parameters for spread in seen])
    widths = sample.half_width(changes[0], changes[1:], groups)
    # A few rows that are all alike are no proof that all the others are.
    widths = np.maximum(widths, np.where(groups > 0, OF_THREE / np.maximum(1, parameters), 0.0))
    return tuple(
        record.model_copy(update={"interval": {"change": _interval("change", change, width)}})
        for record, change, width in zip(records, changes[0].tolist(), widths.tolist(), strict=True)
    )


def _intervals(sample: Sample, filled: int, record: Record, left: Sequence[Record]) -> Intervals:
    values, others = dict(_numbers(record)), [dict(_numbers(other)) for other in left]
    names = [name for name in values if all(name in numbers for numbers in others)]
    whole = [values[name] for name in names]
    halves = sample.half_width(
        whole, [[numbers[name] for name in names] for numbers in others], filled
    )
    return {
        name: _interval(name, values[name], half)
        for name, half in zip(names, halves.tolist(), strict=True)
    }


def _interval(name: str, value: float, half: float) -> Interval:
    bottom, top = _bounds(name)
    return max(bottom, value - half), min(top, value + half)


def _numbers(record: Record) -> Iterator[tuple[str, float]]:
    """The estimated fields by name, and those of a list by name and place."""
    for name in type(record).model_fields.keys() - GIVEN_FIELDS:
        value = getattr(record, name)
        if name == "overlap_share":
            yield from ((f"{name}.{place}", share) for place, share in enumerate(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _bounds(name: str) -> Interval:
    """What a figure can be at all: a share, an angle's cosine, a count or an energy."""
    if name == "cosine":
        return -1.0, 1.0
    if name.split(".")[0] in SHARES:
        return 0.0, 1.0
    return (-math.inf if name in SIGNED else 0.0), math.inf
