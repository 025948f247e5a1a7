"""Numbers as the cells of markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from benchmarks.agents.findings.results import BySeed
from benchmarks.agents.findings.spread import PairedDifference, summarise

NOTHING = "–"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [list(head), ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean(values: BySeed) -> str:
    return f"{fmean(values.values()):.3f}" if values else NOTHING


def spread(values: BySeed) -> str:
    if not values:
        return NOTHING
    summary = summarise(list(values.values()))
    plus_minus = "" if summary.deviation is None else f" ± {summary.deviation:.3f}"
    return f"{summary.mean:.3f}{plus_minus}"


def gain(values: BySeed) -> str:
    return f"{100 * fmean(values.values()):+.1f}"


def signed(difference: PairedDifference) -> str:
    error = difference.standard_error
    plus_minus = "" if error is None else f" ± {100 * error:.1f}"
    return f"{100 * difference.mean:+.1f}{plus_minus}"


def extent(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f}–{high:.0f}"
