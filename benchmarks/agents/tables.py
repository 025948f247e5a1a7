"""Markdown tables of a run of tiny agents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from tasks import TASKS

from benchmarks.agents import merges
from benchmarks.agents.conditions import BY_NAME
from benchmarks.agents.jobs import listed
from benchmarks.agents.results import BySeed, Results, Spread, baselines, fixed_names, summarise
from benchmarks.agents.study import EPSILON

NOTHING = "–"
NUMBER = re.compile(r"[-+−]?\d[\d.,]*(?![\w.])")
CHOICES = ("RAM", "RAM+", merges.DIRECTIONS, "TIES", merges.TASK_ARITHMETIC, merges.WUDI)
RIVALS = ("RAM+", "TIES", merges.TASK_ARITHMETIC, "TIES, tuned", merges.FISHER, merges.WUDI)
RATIO_SHOWN = 100
PAPER_OVERLAPS = {
    "coding": (3.2, 6.3, 49.1, 44.6),
    "tool use": (46.2, 40.8, 56.1, 3.1),
    "memory": (54.3, 47.5, 49.9, 2.6),
}
"""Density and unique / with one / with both others, in per cent (arXiv 2601.13572)."""

Table = Callable[[Results], str]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, columns of text on the left and those of numbers on the right."""
    body = list(rows)
    sides = ["--:" if _is_of_numbers(column) else "---" for column in zip(*body, strict=True)]
    lines = [list(head), sides or ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _is_of_numbers(column: Sequence[str]) -> bool:
    """Most of its cells are; empty cells do not count."""
    said = [cell for cell in column if cell and cell != NOTHING]
    return not said or 2 * sum(NUMBER.match(cell) is not None for cell in said) > len(said)


def spread(values: BySeed, bases: int = 0) -> str:
    """Mean ± standard deviation, and the number of bases where these are not all."""
    if not values:
        return NOTHING
    found = summarise(list(values.values()))
    plus_minus = "" if found.error is None else f" ± {found.error:.3f}"
    return _of(f"{found.mean:.3f}{plus_minus}", found.count, bases)


def points(difference: Spread | None, bases: int = 0) -> str:
    """A difference ± its standard error, in points."""
    if difference is None:
        return NOTHING
    plus_minus = "" if difference.error is None else f" ± {100 * difference.error:.1f}"
    return _of(f"{100 * difference.mean:+.1f}{plus_minus}", difference.count, bases)


def _of(text: str, measured: int, bases: int) -> str:
    return f"{text} ({measured} of {bases})" if 0 < measured < bases else text


def extent(values: list[float], digits: int = 0) -> str:
    """From the least to the largest."""
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def run(results: Results) -> str:
    """When and where a run was, for how long, with which packages and settings."""
    found = results.document
    machine, seconds = found["machine"], found["seconds"]
    times = ", ".join(f"{stage} {value:.0f} s" for stage, value in seconds.items())
    lines = [
        f"{found['date']}, {machine['processor']}, {machine['processes']} processes of one thread",
        f"{sum(seconds.values()) / 60:.0f} minutes in all: {times}",
        listed(found["versions"]),
        f"settings: {listed(found['effort'])}",
    ]
    return "\n".join(f"* {line}" for line in lines)


def conditions(results: Results) -> str:
    """The conditions by name."""
    rows = [[name, BY_NAME[name].title, str(results.bases(name))] for name in results.conditions]
    return markdown(["name", "how the agents came to be", "bases"], rows)


def losses(results: Results) -> str:
    """Losses of merges against the agents, conditions with the most unique changes first."""
    shares = {condition: _unique_shares(results, condition) for condition in results.conditions}
    rows = []
    for condition in sorted(shares, key=lambda name: -fmean(shares[name])):
        agents = results.own((condition, task) for task in TASKS)
        ratios = [(1 - share) / share if share else float("inf") for share in shares[condition]]
        ρ = f"over {RATIO_SHOWN}" if max(ratios) >= RATIO_SHOWN else extent(ratios, digits=1)
        unique = extent([100 * share for share in shares[condition]])
        lost = [_paired(results, condition, name, agents) for name in CHOICES]
        rows.append([condition, unique, ρ, f"{fmean(agents.values()):.3f}", *lost])
    return markdown(["agents", "unique %", "ρ", "on their own", *CHOICES], rows)


def accuracy(results: Results) -> str:
    """Every merge under every condition."""
    names = results.conditions
    lines: dict[str, Callable[[str], BySeed]] = {
        "base": lambda c: results.accuracy(c, "model", "base"),
        "agents, each on its own task": lambda c: results.own((c, task) for task in TASKS),
    }
    for name in (*fixed_names(), *merges.TUNED):
        lines[name] = lambda c, name=name: results.merged(c, name)
    rows = [["bases", *(str(results.bases(c)) for c in names)]]
    rows += [
        [label, *(spread(values(c), results.bases(c)) for c in names)]
        for label, values in lines.items()
    ]
    return markdown(["mean accuracy over the three tasks", *names], rows)


def differences(results: Results) -> str:
    """Our merges against the baseline that validation prompts call the best."""
    names = results.conditions
    ours = [name for name in (*merges.FIXED, *merges.TUNED) if merges.is_ours(name)]
    rows = []
    for kind, group in baselines().items():
        best = {condition: results.best(condition, group) for condition in names}
        rows.append([f"*the best of {kind}*", kind, *(f"*{best[c]}*" for c in names)])
        rows += [
            [label, kind, *(_paired(results, c, label, best[c]) for c in names)] for label in ours
        ]
    return markdown(["merge", "baselines", *names], rows)


def against(results: Results) -> str:
    """``ram_directions`` minus others, in points, paired over bases."""
    ours = merges.DIRECTIONS
    rows = [[n, *(_paired(results, c, ours, n) for c in results.conditions)] for n in RIVALS]
    return markdown([f"{ours} minus", *results.conditions], rows)


def mixtures(results: Results) -> str:
    """Agents of different origin, merged."""
    names = (*merges.MIXED, merges.WUDI, merges.TASK_ARITHMETIC)
    rows = []
    for mixture, agents in results.mixtures.items():
        found = [results.merged(mixture, name) for name in names]
        own = {seed: value for seed, value in results.own(agents).items() if seed in found[0]}
        rows.append([mixture, str(len(own)), *map(spread, (own, *found))])
    return markdown(["mixture", "bases", "on their own", *names], rows)


def members(results: Results) -> str:
    """The agents of the mixtures."""
    rows = [
        [name, "; ".join(f"{task} of {condition}" for condition, task in found)]
        for name, found in results.mixtures.items()
    ]
    return markdown(["mixture", "agents"], rows)


def overlaps(results: Results) -> str:
    """Densities and overlaps, beside the paper's."""
    head = ["agents", "agent", "density %", "unique %", "with one other %", "with both %", "ρ", "λ"]
    rows = []
    for condition in results.conditions:
        counted = [row for row in results.rows(condition, "overlap") if row["epsilon"] == EPSILON]
        for task in TASKS:
            rows.append([condition, task, *overlap_cells([row["agents"][task] for row in counted])])
    for agent, figures in PAPER_OVERLAPS.items():
        ratio = (100 - figures[1]) / figures[1]
        found = [f"{value:.1f}" for value in figures]
        rescale = 1 + 0.1 * min(ratio, 2)
        rows.append(["the paper's", agent, *found, f"{ratio:.2f}", f"{rescale:.3f}"])
    return markdown(head, rows)


def overlap_cells(agents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Density, shares by overlap degree, ρ and λ: means over the same agent of several bases."""
    degrees = [agent["overlap_degree"] for agent in agents]
    shares = [[d / max(sum(degree), 1) for d in degree] for degree in degrees]
    ratios = [(sum(d) - d[0]) / d[0] if d[0] else float("inf") for d in degrees]
    return [
        f"{100 * fmean(agent['density'] for agent in agents):.1f}",
        *(f"{100 * fmean(column):.1f}" for column in zip(*shares, strict=True)),
        f"{fmean(ratios):.2f}",
        f"{fmean(agent['rescale'] for agent in agents):.3f}",
    ]


def epsilon(results: Results) -> str:
    """RAM+ at several ε, and the densities that follow."""
    head = ["ε", *(f"{name}: accuracy (mean density)" for name in results.conditions)]
    rows = []
    for merge in merges.OVER_EPSILON:
        value = merge.parameters["epsilon"]
        found = []
        for condition in results.conditions:
            counted = [r for r in results.rows(condition, "overlap") if r["epsilon"] == value]
            density = [a["density"] for row in counted for a in row["agents"].values()]
            measured = spread(results.accuracy(condition, "epsilon", merge.label))
            found.append(f"{measured} ({100 * fmean(density):.1f} %)")
        rows.append([f"{value:g}", *found])
    return markdown(head, rows)


def ridge(results: Results) -> str:
    """``ram_directions`` at several ridges."""
    return _points_of(results, "ridge", "ridge", merges.OVER_RIDGE, results.conditions)


def sweep(results: Results, name: str) -> str:
    """All points of one parameter, where they were all measured."""
    detailed = [c for c in results.conditions if results.document["conditions"][c]["detailed"]]
    return _points_of(results, "grid", name, merges.SWEEPS[name], detailed)


def _points_of(
    results: Results, kind: str, name: str, grid: Sequence[merges.Merge], conditions: list[str]
) -> str:
    axis = name.split(" ")[0]
    rows = [
        [
            f"{merge.parameters[axis]:g}",
            *(spread(results.accuracy(c, kind, merge.label), results.bases(c)) for c in conditions),
        ]
        for merge in grid
    ]
    return markdown([name, *conditions], rows)


def _paired(results: Results, condition: str, name: str, reference: str | BySeed) -> str:
    return points(results.difference(condition, name, reference), results.bases(condition))


def _unique_shares(results: Results, condition: str) -> list[float]:
    """Of each agent's changes, those that no other agent made; means over bases."""
    counted = [row for row in results.rows(condition, "overlap") if row["epsilon"] == EPSILON]
    degrees = [[row["agents"][task]["overlap_degree"] for row in counted] for task in TASKS]
    return [fmean(d[0] / max(sum(d), 1) for d in found) for found in degrees]
