"""The tables to choose a method by, from results that are made up."""

from __future__ import annotations

from typing import Any

from benchmarks.agents import merges, tables
from benchmarks.agents.results import Results

TASKS = ("add", "reverse", "sort")


def row(condition: str, seed: int, kind: str, name: str, greedy: float) -> dict[str, Any]:
    scores = dict.fromkeys(TASKS, greedy)
    where = {"condition": condition, "seed": seed, "kind": kind, "name": name}
    return where | {"split": "heldout", "tasks": scores}


def overlap(condition: str, seed: int, degree: tuple[int, int, int]) -> dict[str, Any]:
    where = {"condition": condition, "seed": seed, "kind": "overlap", "epsilon": 1e-5}
    return where | {"agents": {task: {"overlap_degree": degree} for task in TASKS}}


def results() -> Results:
    """Two bases each of agents that share all and of agents that share half of their changes."""
    rows = []
    for seed in (0, 1):
        for condition, degree in (("shared", (0, 0, 10)), ("own", (5, 5, 0))):
            models = [row(condition, seed, "model", name, 0.9) for name in ("base", *TASKS)]
            merged = row(condition, seed, "fixed", "RAM", 0.8 - 0.02 * seed)
            rows += [*models, merged, overlap(condition, seed, degree)]
    rows.append(row("shared", 0, "fixed", merges.DIRECTIONS, 0.89))
    return Results({"conditions": {"shared": {}, "own": {}}, "rows": rows})


def line(table: str, name: str) -> list[str]:
    (found,) = (each for each in table.splitlines() if each.startswith(f"| {name} |"))
    return found.strip("| ").split(" | ")


def test_losses_begin_with_the_agents_that_have_most_of_their_own():
    table = tables.losses(results())
    assert [each.split(" | ")[0] for each in table.splitlines()[2:]] == ["| own", "| shared"]
    assert line(table, "own")[1:5] == ["50", "1.0", "0.900", "-11.0 ± 1.0"]
    assert line(table, "shared")[1:3] == ["0", "over 100"]


def test_a_cell_of_fewer_bases_says_of_how_many():
    assert "-1.0 (1 of 2)" in line(tables.losses(results()), "shared")


def test_what_was_not_measured_is_a_dash():
    table = tables.against(results())
    assert line(table, "WUDI")[1:] == ["–", "–"]
    assert line(tables.ridge(results()), "0.3")[1:] == ["–", "–"]


def test_without_mixtures_their_tables_are_empty():
    assert len(tables.mixtures(results()).splitlines()) == 2
    assert len(tables.members(results()).splitlines()) == 2
