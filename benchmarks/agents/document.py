"""The tables in a markdown document: filled in from results, never typed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.agents import details, merges, small_tables, tables
from benchmarks.agents.results import Results, Row

BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def every_table(results: Results) -> dict[str, Callable[[], str]]:
    """What a document can ask for, by name."""
    named: dict[str, Callable[[], str]] = {
        "run": lambda: run(results),
        "conditions": lambda: details.conditions(results),
        "accuracy": lambda: tables.headline(results),
        "differences": lambda: tables.differences(results),
        "chosen": lambda: tables.chosen(results),
        "overlaps": lambda: details.overlaps(results),
        "pairs": lambda: tables.pairs(results),
        "epsilon": lambda: details.thresholds(results),
        "regions": lambda: details.regions(results),
        "realised": lambda: details.realised(results),
        "training": lambda: details.training(results),
    }
    for condition in results.conditions:
        named[f"tasks, {condition}"] = lambda c=condition: tables.per_task(results, c)
    for name in merges.SWEEPS:
        named[f"sweep: {name}"] = lambda n=name: tables.sweep(results, n)
    return named


def run(results: Results) -> str:
    """With what, when, and for how long."""
    document = results.document
    machine, seconds = document["machine"], document["seconds"]
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    times = ", ".join(f"{stage} {value} s" for stage, value in seconds.items())
    effort = ", ".join(f"{name} {value}" for name, value in document["effort"].items())
    return "\n".join(
        [
            f"* {document['date']}, {machine['processor']}, {machine['processes']} processes of "
            "one thread each",
            f"* {round(sum(seconds.values()) / 60)} minutes in all: {times}",
            f"* {versions}",
            f"* settings: {effort}",
        ]
    )


def standalone(results: Results) -> str:
    """All tables, one after the other."""
    parts = [f"## {name}\n\n{table()}\n" for name, table in every_table(results).items()]
    return "\n".join(["# Agents, merged\n", *parts])


def fill(file: Path, results: Results, small: Row | None = None) -> None:
    """Replace what stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.

    Args:
        file: the document.
        results: of the tiny scale.
        small: of the small scale; without them its tables stay as they are.

    Raises:
        click.ClickException: the document asks for a table that there is none of.
    """
    named = every_table(results)
    if small is not None:
        named |= small_tables.every_small_table(small)

    def filled(match: re.Match[str]) -> str:
        name = match[2]
        if small is None and name.startswith(small_tables.PREFIX):
            return match[0]
        if name not in named:
            known = "; ".join(named)
            raise click.ClickException(f"{file}: no table is called '{name}'. Tables: {known}")
        return f"{match[1]}\n{named[name]()}\n\n{match[3]}"

    file.write_text(BLOCK.sub(filled, file.read_text()))
