"""Markdown tables to choose a method by: overlaps with losses, our methods against the others."""

from __future__ import annotations

from statistics import fmean

from tasks import TASKS

from benchmarks.agents.findings.lines import heldout
from benchmarks.agents.findings.results import BySeed, Results
from benchmarks.agents.merges import catalogue
from benchmarks.agents.scores.regions import EPSILON
from benchmarks.agents.tables import cells
from benchmarks.agents.tables.accuracy import paired

CHOICES = ("RAM", "RAM+", catalogue.DIRECTIONS, "TIES", catalogue.TASK_ARITHMETIC, catalogue.WUDI)
RATIO_SHOWN = 100
RIVALS = ("RAM+", "TIES", catalogue.TASK_ARITHMETIC, "TIES, tuned", "Fisher", catalogue.WUDI)


def losses(results: Results) -> str:
    """What merges lose against the agents, conditions with the most unique changes first."""
    shares = {condition: _unique_shares(results, condition) for condition in results.conditions}
    rows = []
    for condition in sorted(shares, key=lambda name: -fmean(shares[name])):
        agents = results.own(condition, TASKS)
        ratios = [(1 - share) / share if share else float("inf") for share in shares[condition]]
        lost = [paired(results, condition, name, agents) for name in CHOICES]
        unique = cells.extent([100 * share for share in shares[condition]])
        rows.append([condition, unique, _ratios(ratios), cells.mean(agents), *lost])
    return cells.markdown(["agents", "unique %", "ρ", "on their own", *CHOICES], rows)


def against(results: Results) -> str:
    """``ram_directions`` minus others, in points, paired over bases."""
    ours = catalogue.DIRECTIONS
    rows = [
        [name, *(paired(results, c, ours, name) for c in results.conditions)] for name in RIVALS
    ]
    return cells.markdown([f"{ours} minus", *results.conditions], rows)


def ridges(results: Results) -> str:
    """``ram_directions`` at several ridges."""
    names = results.conditions
    rows = [
        [
            f"{merge.parameters['ridge']:g}",
            *(_spread(results, c, results.accuracy(c, "ridge", merge.label)) for c in names),
        ]
        for merge in catalogue.OVER_RIDGE
    ]
    return cells.markdown(["ridge", *names], rows)


def mixtures(results: Results) -> str:
    """Agents of different origin, merged."""
    merges = (*catalogue.MIXED, catalogue.WUDI, catalogue.TASK_ARITHMETIC)
    rows = []
    for name, agents in results.mixtures.items():
        found = [heldout(results, name, merge) for merge in merges]
        own = {seed: value for seed, value in _own(results, agents).items() if seed in found[0]}
        rows.append([name, str(len(own)), *map(cells.spread, (own, *found))])
    return cells.markdown(["mixture", "bases", "on their own", *merges], rows)


def members(results: Results) -> str:
    """Which agents the mixtures hold."""
    rows = [
        [name, "; ".join(f"{task} of {condition}" for condition, task in found)]
        for name, found in results.mixtures.items()
    ]
    return cells.markdown(["mixture", "agents"], rows)


def _spread(results: Results, condition: str, values: BySeed) -> str:
    return cells.of(cells.spread(values), len(values), results.bases(condition))


def _unique_shares(results: Results, condition: str) -> list[float]:
    """Of each agent's changes, those that no other agent made; means over bases."""
    counted = [row for row in results.rows(condition, "overlap") if row["epsilon"] == EPSILON]
    degrees = [[row["agents"][task]["overlap_degree"] for row in counted] for task in TASKS]
    return [fmean(d[0] / max(sum(d), 1) for d in found) for found in degrees]


def _ratios(ratios: list[float]) -> str:
    low, high = min(ratios), max(ratios)
    if high >= RATIO_SHOWN:
        return f"over {RATIO_SHOWN}"
    return f"{low:.1f}" if low == high else f"{low:.1f}–{high:.1f}"


def _own(results: Results, agents: list[tuple[str, str]]) -> BySeed:
    """The mean of a mixture's agents, each on its own task, by base."""
    found = [results.task_accuracy(condition, "model", task, task) for condition, task in agents]
    seeds = sorted(set.intersection(*map(set, found)))
    return {seed: fmean(each[seed] for each in found) for seed in seeds}
