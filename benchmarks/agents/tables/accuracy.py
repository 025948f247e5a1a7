"""Markdown tables of what the merges get right."""

from __future__ import annotations

from collections.abc import Callable

from tasks import TASKS

from benchmarks.agents.findings.lines import (
    baselines,
    best_baseline,
    difference,
    fixed_names,
    heldout,
)
from benchmarks.agents.findings.results import BySeed, Results
from benchmarks.agents.merges import catalogue
from benchmarks.agents.tables import cells


def headline(results: Results) -> str:
    """Every merge under every condition."""
    names = results.conditions
    head = ["mean accuracy over the three tasks", *names]
    bases = {condition: results.bases(condition) for condition in names}
    rows = [["bases", *map(str, bases.values())]]
    for label, values in _lines(results):
        found = {condition: values(condition) for condition in names}
        line = [cells.of(cells.spread(v), len(v), bases[c]) for c, v in found.items()]
        rows.append([label, *line])
    return cells.markdown(head, rows)


def differences(results: Results) -> str:
    """Our merges against the baseline that validation prompts call the best."""
    names = results.conditions
    ours = [name for name in (*catalogue.FIXED, *catalogue.TUNED) if catalogue.is_ours(name)]
    rows = []
    for kind, group in baselines().items():
        best = {condition: best_baseline(results, condition, group) for condition in names}
        rows.append([f"*the best of {kind}*", kind, *(f"*{best[c]}*" for c in names)])
        rows += [
            [label, kind, *(paired(results, c, label, best[c]) for c in names)] for label in ours
        ]
    return cells.markdown(["merge", "baselines", *names], rows)


def paired(results: Results, condition: str, name: str, reference: str | BySeed) -> str:
    """The cell of a difference, and of how many bases it is."""
    found = difference(results, condition, name, reference)
    count = 0 if found is None else found.count
    return cells.of(cells.signed(found), count, results.bases(condition))


def per_task(results: Results, condition: str) -> str:
    """One condition in detail: tasks, samples, retention."""
    head = ["model", *TASKS, "mean", "one sample", "best of 4", "loss on the base's mixture"]
    rows = [_detail(results, condition, "model", name, name) for name in ("base", *TASKS)]
    rows += [_detail(results, condition, "fixed", name, name) for name in fixed_names()]
    rows += [_tuned_detail(results, condition, name) for name in catalogue.TUNED]
    return cells.markdown(head, rows)


def chosen(results: Results) -> str:
    """Which points the validation prompts chose."""
    rows = []
    for name in catalogue.TUNED:
        for condition in results.conditions:
            labels = [row["chosen"] for _, row in sorted(results.tuned(condition, name).items())]
            rows.append([name, condition, "; ".join(_short(label) for label in labels)])
    return cells.markdown(["grid", "agents", "chosen, by base"], rows)


def sweep(results: Results, name: str) -> str:
    """All points of one parameter, where they were all measured."""
    detailed = [c for c in results.conditions if results.document["conditions"][c]["detailed"]]
    axis = name.split(" ")[0]
    rows = [
        [
            f"{merge.parameters[axis]:g}",
            *(cells.spread(results.accuracy(c, "grid", merge.label)) for c in detailed),
        ]
        for merge in catalogue.SWEEPS[name]
    ]
    return cells.markdown([name, *detailed], rows)


def pairs(results: Results) -> str:
    """Two agents merged, on their two tasks."""
    head = ["pair", "agents", *catalogue.PAIRED]
    rows = []
    for condition in results.conditions:
        if not results.document["conditions"][condition]["detailed"]:
            continue
        for pair in ("add+reverse", "add+sort", "reverse+sort"):
            found = [
                cells.spread(results.accuracy(condition, f"pair {pair}", name))
                for name in catalogue.PAIRED
            ]
            rows.append([pair, condition, *found])
    return cells.markdown(head, rows)


def _lines(results: Results) -> list[tuple[str, Callable[[str], BySeed]]]:
    lines: list[tuple[str, Callable[[str], BySeed]]] = [
        ("base", lambda c: results.accuracy(c, "model", "base")),
        ("agents, each on its own task", lambda c: results.own(c, TASKS)),
    ]
    for name in [*fixed_names(), *catalogue.TUNED]:
        lines.append((name, lambda c, name=name: heldout(results, c, name)))
    return lines


def _detail(results: Results, condition: str, kind: str, name: str, label: str) -> list[str]:
    whole = results.accuracy(condition, kind, name)
    return [
        label,
        *(cells.mean(results.task_accuracy(condition, kind, name, task)) for task in TASKS),
        cells.of(cells.spread(whole), len(whole), results.bases(condition)),
        cells.mean(results.accuracy(condition, kind, name, field="sampled")),
        cells.mean(results.accuracy(condition, kind, name, field="best_of_4")),
        cells.mean(results.retention(condition, kind, name)),
    ]


def _tuned_detail(results: Results, condition: str, name: str) -> list[str]:
    def of(values: Callable[[str], BySeed]) -> BySeed:
        rows = results.tuned(condition, name).items()
        return {seed: values(row["chosen"])[seed] for seed, row in rows}

    return [
        name,
        *(
            cells.mean(of(lambda m, task=task: results.task_accuracy(condition, "grid", m, task)))
            for task in TASKS
        ),
        cells.spread(of(lambda m: results.accuracy(condition, "grid", m))),
        cells.mean(of(lambda m: results.accuracy(condition, "grid", m, field="sampled"))),
        cells.mean(of(lambda m: results.accuracy(condition, "grid", m, field="best_of_4"))),
        cells.mean(of(lambda m: results.retention(condition, "grid", m))),
    ]


def _short(label: str) -> str:
    return " ".join(label.split(" ")[1:])
