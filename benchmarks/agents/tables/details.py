"""Markdown tables of the agents themselves: how they were made, and where their changes lie."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from tasks import TASKS

from benchmarks.agents.findings.results import BySeed, Results
from benchmarks.agents.merges import catalogue
from benchmarks.agents.scores.regions import EPSILON
from benchmarks.agents.tables import cells
from benchmarks.agents.tiny.conditions import BY_NAME

PAPER_OVERLAPS = {
    "coding": (3.2, 6.3, 49.1, 44.6),
    "tool use": (46.2, 40.8, 56.1, 3.1),
    "memory": (54.3, 47.5, 49.9, 2.6),
}
"""Density and unique / with one / with both others, in per cent (arXiv 2601.13572)."""


def conditions(results: Results) -> str:
    """What the names stand for."""
    rows = [[name, BY_NAME[name].title, str(results.bases(name))] for name in results.conditions]
    return cells.markdown(["name", "how the agents came to be", "bases"], rows)


def training(results: Results) -> str:
    """How the agents were made and how long it took."""
    head = ["agents", "agent", "steps", "learning rate", "seconds"]
    head += ["own-task accuracy", "the base's"]
    rows = []
    for condition in results.conditions:
        runs = [run for run in results.document["training"] if run["condition"] == condition]
        for task in TASKS:
            made = [run["agents"][task] for run in runs]
            found = [
                cells.extent([max(map(float, each["validation"]), default=0) for each in made]),
                f"{made[0]['recipe']['learning_rate']:g}",
                cells.extent([each["seconds"] for each in made]),
                cells.spread(results.task_accuracy(condition, "model", task, task)),
                cells.spread(results.task_accuracy(condition, "model", "base", task)),
            ]
            rows.append([condition, task, *found])
    return cells.markdown(head, rows)


def overlaps(results: Results) -> str:
    """Densities and overlaps, beside the paper's."""
    head = ["agents", "agent", "density %", "unique %", "with one other %", "with both %", "ρ", "λ"]
    rows = []
    for condition in results.conditions:
        counted = [row for row in results.rows(condition, "overlap") if row["epsilon"] == EPSILON]
        for task in TASKS:
            agents = [row["agents"][task] for row in counted]
            rows.append([condition, task, *overlap_cells(agents)])
    for agent, figures in PAPER_OVERLAPS.items():
        density, unique, *others = figures
        ratio = (100 - unique) / unique
        found = [f"{value:.1f}" for value in (density, unique, *others)]
        rows.append(
            ["the paper's", agent, *found, f"{ratio:.2f}", f"{1 + 0.1 * min(ratio, 2):.3f}"]
        )
    return cells.markdown(head, rows)


def thresholds(results: Results) -> str:
    """RAM+ at several ε, and the densities that follow."""
    head = ["ε", *(f"{name}: accuracy (mean density)" for name in results.conditions)]
    rows = []
    for merge in catalogue.OVER_EPSILON:
        epsilon = merge.parameters["epsilon"]
        found = []
        for condition in results.conditions:
            accuracy = cells.spread(results.accuracy(condition, "epsilon", merge.label))
            counted = [r for r in results.rows(condition, "overlap") if r["epsilon"] == epsilon]
            density = [a["density"] for row in counted for a in row["agents"].values()]
            found.append(f"{accuracy} ({100 * fmean(density):.1f} %)")
        rows.append([f"{epsilon:g}", *found])
    return cells.markdown(head, rows)


def regions(results: Results) -> str:
    """Gains over the base on the agent's own task, from parts of its task vector."""
    head = ["whole", "unique", "unique, 1/N", "shared", "half of unique", "half / unique"]
    return _by_agent(results, head, _region_cells)


def realised(results: Results) -> str:
    """λ asked for, and what a bfloat16 output holds of it."""
    head = ["λ", "realised λ", "(realised − 1) / (λ − 1)", "unique weights that λ changed"]
    return _by_agent(results, head, _realised_cells)


def overlap_cells(agents: list[dict[str, Any]]) -> list[str]:
    """Density, shares by overlap degree, ρ and λ: means over the same agent of several bases."""
    degrees = [
        [d / max(sum(agent["overlap_degree"]), 1) for d in agent["overlap_degree"]]
        for agent in agents
    ]
    unique = [agent["overlap_degree"][0] for agent in agents]
    active = [sum(agent["overlap_degree"]) for agent in agents]
    ratios = [(a - u) / u if u else float("inf") for a, u in zip(active, unique, strict=True)]
    return [
        f"{100 * fmean(agent['density'] for agent in agents):.1f}",
        *(f"{100 * fmean(column):.1f}" for column in zip(*degrees, strict=True)),
        f"{fmean(ratios):.2f}",
        f"{fmean(agent['rescale'] for agent in agents):.3f}",
    ]


def _by_agent(
    results: Results, head: list[str], found: Callable[[Results, str, str], list[str]]
) -> str:
    """One line per condition and agent."""
    rows = [[c, task, *found(results, c, task)] for c in results.conditions for task in TASKS]
    return cells.markdown(["agents", "agent", *head], rows)


def _region_cells(results: Results, condition: str, task: str) -> list[str]:
    base = results.task_accuracy(condition, "model", "base", task)
    whole = results.task_accuracy(condition, "model", task, task)

    def gain(values: BySeed) -> BySeed:
        return {seed: value - base[seed] for seed, value in values.items()}

    def part(name: str) -> BySeed:
        return gain(results.task_accuracy(condition, "region", f"{task}: {name}", task))

    draws = results.document["effort"]["isotropy_draws"]
    halves = [part(f"half of unique, draw {draw}") for draw in range(draws)]
    half = {seed: fmean(draw[seed] for draw in halves) for seed in base}
    unique = part("unique")
    total = fmean(unique.values())
    share = f"{fmean(half.values()) / total:.2f}" if abs(total) > 0.01 else cells.NOTHING
    columns = [gain(whole), unique, part("unique, diluted"), part("shared"), half]
    return [*(cells.gain(values) for values in columns), share]


def _realised_cells(results: Results, condition: str, task: str) -> list[str]:
    found = [row["agents"][task] for row in results.rows(condition, "realised")]
    found = [each for each in found if each["factor"] is not None]
    if not found:
        return [cells.NOTHING] * 4
    kept = [(each["factor"] - 1) / (each["requested"] - 1) for each in found]
    return [
        f"{fmean(each['requested'] for each in found):.3f}",
        f"{fmean(each['factor'] for each in found):.3f}",
        f"{100 * fmean(kept):.0f} %",
        f"{100 * fmean(each['changed_share'] for each in found):.0f} %",
    ]
