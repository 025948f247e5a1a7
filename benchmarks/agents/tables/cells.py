"""Numbers as the cells of markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean

from benchmarks.agents.findings.results import BySeed
from benchmarks.agents.findings.spread import PairedDifference, summarise

NOTHING = "–"
NUMBER = re.compile(r"[-+−]?\d[\d.,]*(?![\w.])")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, columns of text on the left and those of numbers on the right."""
    body = list(rows)
    sides = ["--:" if _is_of_numbers(column) else "---" for column in zip(*body, strict=True)]
    lines = [list(head), sides or ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _is_of_numbers(column: Sequence[str]) -> bool:
    """Most of its cells are; cells without anything do not count."""
    said = [cell for cell in column if cell and cell != NOTHING]
    return not said or 2 * sum(NUMBER.match(cell) is not None for cell in said) > len(said)


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


def signed(difference: PairedDifference | None) -> str:
    if difference is None:
        return NOTHING
    error = difference.standard_error
    plus_minus = "" if error is None else f" ± {100 * error:.1f}"
    return f"{100 * difference.mean:+.1f}{plus_minus}"


def of(text: str, measured: int, bases: int) -> str:
    """A cell, with the number of bases that it is of where these are not all."""
    return f"{text} ({measured} of {bases})" if 0 < measured < bases else text


def extent(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f}–{high:.0f}"
