"""Markdown tables of the small scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

from benchmarks.agents.findings.small import (
    BASELINES,
    best_baseline,
    difference,
    own_accuracy,
)
from benchmarks.agents.merges import catalogue
from benchmarks.agents.merges.catalogue import BASE
from benchmarks.agents.running.machine import Row, in_words, listed
from benchmarks.agents.scores.likelihood import mean_accuracy
from benchmarks.agents.small.tasks import SMALL_TASKS
from benchmarks.agents.tables import cells
from benchmarks.agents.tables.details import overlap_cells

PREFIX = "small, seed "
"""Of the names under which a document asks for these tables; the seed follows, and a colon."""


def every_small_table(found: Row) -> dict[str, Callable[[], str]]:
    """What a document can ask for, by name."""
    tables = (run, training, overlaps, accuracy, differences)
    return {prefix(found) + table.__name__: partial(table, found) for table in tables}


def prefix(found: Row) -> str:
    """Of the names of a run's tables."""
    return f"{PREFIX}{found['seed']}: "


def standalone(found: Row) -> str:
    """All tables, one after the other."""
    parts = [f"## {name}\n\n{table()}\n" for name, table in every_small_table(found).items()]
    return "\n".join(["# Agents from SmolLM2-135M-Instruct, merged\n", *parts])


def run(found: Row) -> str:
    """With what, when, and for how long."""
    return in_words(found, f"{listed(found['pace'])}, seed {found['seed']}")


def training(found: Row) -> str:
    """How base and agents came to be."""
    head = ["task", "warm-up steps", "GRPO steps", "seconds", "reward: first", "last five"]
    head += ["base's accuracy", "agent's"]
    rows = []
    for name in SMALL_TASKS:
        made = found["training"][name]
        shown = found["training"][BASE]["warm_up"][name]
        below = sum(share < found["pace"]["warm_up_target"] for share in shown)
        rows.append(
            [
                name,
                str(below),
                str(len(made["rewards"])),
                f"{made['seconds']:.0f}",
                f"{made['rewards'][0]:.2f}",
                f"{fmean(made['rewards'][-5:]):.2f}",
                *(f"{found['models'][m]['tasks'][name]['greedy']:.3f}" for m in (BASE, name)),
            ]
        )
    return cells.markdown(head, rows)


def overlaps(found: Row) -> str:
    """Densities and overlaps."""
    head = ["agent", "density %", "unique %", "with one other %", "with both %", "ρ", "λ"]
    rows = [[name, *overlap_cells([agent])] for name, agent in found["overlaps"].items()]
    return cells.markdown(head, rows)


def accuracy(found: Row) -> str:
    """Every model and every merge on held-out prompts."""
    head = ["model", *SMALL_TASKS, "mean", "best of 4", "loss on general text", "seconds to merge"]
    rows = [[*_line(name, row), ""] for name, row in found["models"].items()]
    own = [f"{found['models'][name]['tasks'][name]['greedy']:.3f}" for name in SMALL_TASKS]
    rows.append(["agents, each on its own task", *own, f"{own_accuracy(found):.3f}", "", "", ""])
    rows += [
        [
            *_line(" ".join([name, _settings(found["chosen"].get(name, ""))]).strip(), row),
            f"{row['seconds']['merge']:.1f}",
        ]
        for name, row in found["merges"].items()
    ]
    return cells.markdown(head, rows)


def differences(found: Row) -> str:
    """Our merges against the baselines that validation prompts call the best, in points."""
    rows = []
    for baselines in BASELINES if found["chosen"] else BASELINES[:1]:
        reference = best_baseline(found, baselines)
        against = f"{reference} (the best that is {baselines})"
        rows += [
            [name, against, cells.signed(difference(found, name, reference))]
            for name in found["merges"]
            if catalogue.is_ours(name)
        ]
    return cells.markdown(["merge", "against", "points"], rows)


def _line(name: str, row: Row) -> list[str]:
    tasks = [row["tasks"][task] for task in SMALL_TASKS]
    return [
        name,
        *(f"{task['greedy']:.3f}" for task in tasks),
        f"{mean_accuracy(row):.3f}",
        f"{fmean(task['best_of_4'] for task in tasks):.3f}",
        f"{row['text_loss']:.3f}",
    ]


def _settings(label: str) -> str:
    """The parameters of a label, without the method."""
    parameters = label.partition(" ")[2]
    return f"({parameters})" if parameters else ""
