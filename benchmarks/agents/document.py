"""The tables in Markdown documents: filled in from results, never typed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import click

from benchmarks.agents import merges, tables
from benchmarks.agents.jobs import Row
from benchmarks.agents.results import Results, paired_difference

BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
WHOLE = (
    *(tables.run, tables.conditions, tables.losses, tables.accuracy, tables.differences),
    *(tables.against, tables.ridge, tables.members, tables.mixtures),
    *(tables.overlaps, tables.epsilon),
)
SMALL_TASKS = ("tool", "compute", "recall")
SMALL = "small, seed "
"""Of the names under which a document asks for these tables; the seed follows, and a colon."""


def every_table(results: Results, small: Sequence[Row] = ()) -> dict[str, Callable[[], str]]:
    """The tables that a document can ask for, by name."""
    named: dict[str, Callable[[], str]] = {t.__name__: partial(t, results) for t in WHOLE}
    for name in merges.SWEEPS:
        named[f"sweep: {name}"] = partial(tables.sweep, results, name)
    for found in small:
        for table in (small_overlaps, small_accuracy, small_differences):
            name = table.__name__.removeprefix("small_")
            named[f"{SMALL}{found['seed']}: {name}"] = partial(table, found)
    return named


def standalone(results: Results) -> str:
    """All tables, one after the other."""
    parts = [f"## {name}\n\n{table()}\n" for name, table in every_table(results).items()]
    return "\n".join(["# Agents, merged\n", *parts])


def fill(file: Path, named: dict[str, Callable[[], str]]) -> None:
    """Replace the text between ``<!-- table: NAME -->`` and ``<!-- end -->``.

    Tables of the small scale whose results were not given stay as they are.

    Raises:
        click.ClickException: the document asks for a table that does not exist.
    """

    def filled(match: re.Match[str]) -> str:
        name = match[2]
        if name in named:
            return f"{match[1]}\n{named[name]()}\n\n{match[3]}"
        if name.startswith(SMALL):
            return match[0]
        known = "; ".join(named)
        raise click.ClickException(f"{file}: no table is called '{name}'. Tables: {known}")

    file.write_text(BLOCK.sub(filled, file.read_text()))


# Agents from SmolLM2-135M-Instruct


def small_overlaps(found: Row) -> str:
    """Densities and overlaps."""
    head = ["agent", "density %", "unique %", "with one other %", "with both %", "ρ", "λ"]
    rows = [[name, *tables.overlap_cells([agent])] for name, agent in found["overlaps"].items()]
    return tables.markdown(head, rows)


def small_accuracy(found: Row) -> str:
    """Every model and every merge on held-out prompts."""
    own = [found["models"][name]["tasks"][name]["greedy"] for name in SMALL_TASKS]
    rows = [[*_line(name, row), ""] for name, row in found["models"].items()]
    rows.append(["agents, each on its own task", *(f"{x:.3f}" for x in (*own, fmean(own))), ""])
    rows += [
        [*_line(name, row), f"{row['seconds']['merge']:.1f}"]
        for name, row in found["merges"].items()
    ]
    return tables.markdown(["model", *SMALL_TASKS, "mean", "seconds to merge"], rows)


def small_differences(found: Row) -> str:
    """Our merges against the baseline that validation prompts call the best, in points."""

    def right(name: str) -> dict[int, float]:
        tasks = found["merges"][name]["tasks"]
        return dict(enumerate(float(bit) for task in SMALL_TASKS for bit in tasks[task]["right"]))

    others = [name for name in found["merges"] if not merges.is_ours(name)]
    best = max(others, key=found["validation"].__getitem__)
    rows = [
        [name, best, tables.points(paired_difference(right(name), right(best)))]
        for name in found["merges"]
        if merges.is_ours(name)
    ]
    return tables.markdown(["merge", "against", "points"], rows)


def _line(name: str, row: Row) -> list[str]:
    found = [row["tasks"][task]["greedy"] for task in SMALL_TASKS]
    return [name, *(f"{value:.3f}" for value in (*found, fmean(found)))]
