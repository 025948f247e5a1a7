"""Means over bases, their spread, and differences between merges of the same agents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Summary:
    """A mean over bases and the standard deviation between them (None for a single base)."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class PairedDifference:
    """The mean of differences at the same base, and its standard error (None for one base).

    Bases differ more from one another than merges do; pairing takes that out.
    """

    mean: float
    standard_error: float | None
    count: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation."""
    return Summary(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def paired_difference(
    values: Mapping[int, float], reference: Mapping[int, float]
) -> PairedDifference:
    """``values`` minus ``reference`` over the bases that both have."""
    seeds = sorted(values.keys() & reference.keys())
    differences = [values[seed] - reference[seed] for seed in seeds]
    error = stdev(differences) / math.sqrt(len(seeds)) if len(seeds) > 1 else None
    return PairedDifference(fmean(differences), error, len(seeds))


def best(validation: Mapping[str, Mapping[int, float]]) -> str:
    """The name with the highest mean over bases; chosen on validation prompts, never on others."""
    return max(validation, key=lambda name: fmean(validation[name].values()))


def sampling_error(share: float, prompts: int) -> float:
    """The standard error of a share of independent prompts."""
    return math.sqrt(share * (1 - share) / prompts)
