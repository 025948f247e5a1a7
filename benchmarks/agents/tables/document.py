"""The tables in a markdown document: filled in from results, never typed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from benchmarks.agents.findings.results import Results, Row
from benchmarks.agents.merges import catalogue
from benchmarks.agents.running.machine import in_words, listed
from benchmarks.agents.tables import accuracy, choice, details, small

BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def every_table(results: Results) -> dict[str, Callable[[], str]]:
    """What a document can ask for, by name."""
    named: dict[str, Callable[[], str]] = {
        "run": lambda: run(results),
        "conditions": lambda: details.conditions(results),
        "losses": lambda: choice.losses(results),
        "against": lambda: choice.against(results),
        "ridge": lambda: choice.ridges(results),
        "members": lambda: choice.members(results),
        "mixtures": lambda: choice.mixtures(results),
        "accuracy": lambda: accuracy.headline(results),
        "differences": lambda: accuracy.differences(results),
        "chosen": lambda: accuracy.chosen(results),
        "overlaps": lambda: details.overlaps(results),
        "pairs": lambda: accuracy.pairs(results),
        "epsilon": lambda: details.thresholds(results),
        "regions": lambda: details.regions(results),
        "realised": lambda: details.realised(results),
        "training": lambda: details.training(results),
    }
    for condition in results.conditions:
        named[f"tasks, {condition}"] = lambda c=condition: accuracy.per_task(results, c)
    for name in catalogue.SWEEPS:
        named[f"sweep: {name}"] = lambda n=name: accuracy.sweep(results, n)
    return named


def run(results: Results) -> str:
    """With what, when, and for how long."""
    settings = listed(results.document["effort"])
    return in_words(results.document, settings, "processes of one thread each")


def standalone(results: Results) -> str:
    """All tables, one after the other."""
    parts = [f"## {name}\n\n{table()}\n" for name, table in every_table(results).items()]
    return "\n".join(["# Agents, merged\n", *parts])


def fill(file: Path, results: Results, small_found: Sequence[Row] = ()) -> None:
    """Replace what stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.

    Args:
        file: the document.
        results: of the tiny scale.
        small_found: runs of the small scale; the tables of other seeds stay as they are.

    Raises:
        click.ClickException: the document asks for a table that there is none of.
    """
    named = every_table(results)
    for found in small_found:
        named |= small.every_small_table(found)
    measured = tuple(map(small.prefix, small_found))

    def filled(match: re.Match[str]) -> str:
        name = match[2]
        if name.startswith(small.PREFIX) and not name.startswith(measured):
            return match[0]
        if name not in named:
            known = "; ".join(named)
            raise click.ClickException(f"{file}: no table is called '{name}'. Tables: {known}")
        return f"{match[1]}\n{named[name]()}\n\n{match[3]}"

    file.write_text(BLOCK.sub(filled, file.read_text()))
