"""Markdown tables of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from tasks import TASKS

from benchmarks.agents import merges
from benchmarks.agents.conditions import BY_NAME
from benchmarks.agents.results import BySeed, Results
from benchmarks.agents.spread import best, paired_difference, summarise
from benchmarks.agents.study import FLOAT32_OUTPUT

NOTHING = "–"
PAPER_OVERLAPS = {
    "coding": (3.2, 6.3, 49.1, 44.6),
    "tool use": (46.2, 40.8, 56.1, 3.1),
    "memory": (54.3, 47.5, 49.9, 2.6),
}
"""Density and unique / with one / with both others, in per cent (arXiv 2601.13572)."""
LIBRARY = ("Fisher", "WUDI")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [list(head), ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def headline(results: Results) -> str:
    """Every merge under every condition."""
    names = results.conditions
    head = ["mean accuracy over the three tasks", *names]
    rows = [["bases", *(str(len(results.accuracy(c, "model", "base"))) for c in names)]]
    rows += [
        [label, *(_spread(values(condition)) for condition in names)]
        for label, values in _lines(results)
    ]
    return markdown(head, rows)


def differences(results: Results) -> str:
    """Our merges against the baseline that validation prompts call the best."""
    head = ["merge", "baselines"]
    names = results.conditions
    rows = []
    for tuned, ours in _comparisons():
        for label in ours:
            cells = []
            for condition in names:
                reference = best_baseline(results, condition, tuned)
                mine = heldout(results, condition, label)
                theirs = heldout(results, condition, reference)
                cells.append(_signed(mine, theirs))
            rows.append([label, "tuned or not" if tuned else "not tuned", *cells])
    for tuned in (False, True):
        chosen = [best_baseline(results, condition, tuned) for condition in names]
        kind = "tuned or not" if tuned else "not tuned"
        rows.append(["*the baseline*", kind, *(f"*{name}*" for name in chosen)])
    return markdown([*head, *names], rows)


def per_task(results: Results, condition: str) -> str:
    """One condition in detail: tasks, samples, retention."""
    head = ["model", *TASKS, "mean", "one sample", "best of 4", "loss on the base's mixture"]
    rows = [_detail(results, condition, "model", name, name) for name in ("base", *TASKS)]
    rows += [_detail(results, condition, "fixed", name, name) for name in _fixed_names()]
    rows += [_tuned_detail(results, condition, name) for name in merges.TUNED]
    return markdown(head, rows)


def chosen(results: Results) -> str:
    """Which points the validation prompts chose."""
    rows = []
    for name in merges.TUNED:
        for condition in results.conditions:
            labels = [row["chosen"] for _, row in sorted(results.tuned(condition, name).items())]
            rows.append([name, condition, "; ".join(_short(label) for label in labels)])
    return markdown(["grid", "agents", "chosen, by base"], rows).replace("--:", "---")


def sweep(results: Results, name: str) -> str:
    """All points of one parameter, where they were all measured."""
    detailed = [c for c in results.conditions if results.document["conditions"][c]["detailed"]]
    axis = name.split(" ")[0]
    rows = [
        [
            f"{merge.parameters[axis]:g}",
            *(_spread(results.accuracy(c, "grid", merge.label)) for c in detailed),
        ]
        for merge in merges.SWEEPS[name]
    ]
    return markdown([name, *detailed], rows)


def overlaps(results: Results) -> str:
    """Densities and overlaps, beside the paper's."""
    head = ["agents", "agent", "density %", "unique %", "with one other %", "with both %", "ρ", "λ"]
    rows = []
    for condition in results.conditions:
        counted = [
            row for row in results.rows(condition, "overlap") if row["epsilon"] == merges_epsilon()
        ]
        for task in TASKS:
            agents = [row["agents"][task] for row in counted]
            rows.append([condition, task, *_overlap_cells(agents)])
    for agent, figures in PAPER_OVERLAPS.items():
        density, unique, *others = figures
        ratio = (100 - unique) / unique
        cells = [f"{value:.1f}" for value in (density, unique, *others)]
        rows.append(
            ["the paper's", agent, *cells, f"{ratio:.2f}", f"{1 + 0.1 * min(ratio, 2):.3f}"]
        )
    return markdown(head, rows)


def pairs(results: Results) -> str:
    """Two agents merged, on their two tasks."""
    head = ["pair", "agents", *merges.PAIRED]
    rows = []
    for condition in results.conditions:
        if not results.document["conditions"][condition]["detailed"]:
            continue
        for pair in ("add+reverse", "add+sort", "reverse+sort"):
            cells = [
                _spread(results.accuracy(condition, f"pair {pair}", name)) for name in merges.PAIRED
            ]
            rows.append([pair, condition, *cells])
    return markdown(head, rows)


def thresholds(results: Results) -> str:
    """RAM+ at several ε, and the densities that follow."""
    head = ["ε", *(f"{name}: accuracy (mean density)" for name in results.conditions)]
    rows = []
    for merge in merges.OVER_EPSILON:
        epsilon = merge.parameters["epsilon"]
        cells = []
        for condition in results.conditions:
            accuracy = _spread(results.accuracy(condition, "epsilon", merge.label))
            counted = [r for r in results.rows(condition, "overlap") if r["epsilon"] == epsilon]
            density = [a["density"] for row in counted for a in row["agents"].values()]
            cells.append(f"{accuracy} ({100 * fmean(density):.1f} %)")
        rows.append([f"{epsilon:g}", *cells])
    return markdown(head, rows)


def regions(results: Results) -> str:
    """Gains over the base on the agent's own task, from parts of its task vector."""
    head = [
        "agents",
        "agent",
        "whole",
        "unique",
        "unique, 1/N",
        "shared",
        "half of unique",
        "half / unique",
    ]
    rows = []
    for condition in results.conditions:
        for task in TASKS:
            rows.append([condition, task, *_region_cells(results, condition, task)])
    return markdown(head, rows)


def realised(results: Results) -> str:
    """λ asked for, and what a bfloat16 output holds of it."""
    head = [
        "agents",
        "agent",
        "λ",
        "realised λ",
        "(realised − 1) / (λ − 1)",
        "unique weights that λ changed",
    ]
    rows = []
    for condition in results.conditions:
        for task in TASKS:
            found = [row["agents"][task] for row in results.rows(condition, "realised")]
            whole = [each for each in found if each["factor"] is not None]
            if not whole:
                rows.append([condition, task, *[NOTHING] * 4])
                continue
            kept = [(each["factor"] - 1) / (each["requested"] - 1) for each in whole]
            cells = [
                f"{fmean(each['requested'] for each in whole):.3f}",
                f"{fmean(each['factor'] for each in whole):.3f}",
                f"{100 * fmean(kept):.0f} %",
                f"{100 * fmean(each['changed_share'] for each in whole):.0f} %",
            ]
            rows.append([condition, task, *cells])
    return markdown(head, rows)


def training(results: Results) -> str:
    """How the agents were made and how long it took."""
    head = [
        "agents",
        "agent",
        "steps",
        "learning rate",
        "seconds",
        "own-task accuracy",
        "the base's",
    ]
    rows = []
    for condition in results.conditions:
        runs = [run for run in results.document["training"] if run["condition"] == condition]
        for task in TASKS:
            made = [run["agents"][task] for run in runs]
            cells = [
                _range([float(max(map(int, each["validation"]), default=0)) for each in made]),
                f"{made[0]['recipe']['learning_rate']:g}",
                _range([each["seconds"] for each in made]),
                _spread(results.task_accuracy(condition, "model", task, task)),
                _spread(results.task_accuracy(condition, "model", "base", task)),
            ]
            rows.append([condition, task, *cells])
    return markdown(head, rows)


def conditions(results: Results) -> str:
    """What the names stand for."""
    rows = [
        [name, BY_NAME[name].title, str(len(results.accuracy(name, "model", "base")))]
        for name in results.conditions
    ]
    return markdown(["name", "how the agents came to be", "bases"], rows)


def heldout(results: Results, condition: str, name: str) -> BySeed:
    """Mean accuracy of a line of the tables on held-out prompts, by base."""
    if name not in merges.TUNED:
        return results.accuracy(condition, "fixed", name)
    return {
        seed: results.accuracy(condition, "grid", row["chosen"])[seed]
        for seed, row in results.tuned(condition, name).items()
    }


def validation(results: Results, condition: str, name: str) -> BySeed:
    """The same on validation prompts."""
    if name not in merges.TUNED:
        return results.accuracy(condition, "fixed", name, split="validation")
    return {seed: row["validation"] for seed, row in results.tuned(condition, name).items()}


def best_baseline(results: Results, condition: str, tuned: bool) -> str:
    """The merge that is not ours with the highest validation accuracy."""
    names = [*_fixed_names(), *(merges.TUNED if tuned else ())]
    return best({n: validation(results, condition, n) for n in names if not merges.is_ours(n)})


def _fixed_names() -> list[str]:
    names = [name for name in merges.FIXED if not merges.is_ours(name)]
    ours = [name for name in merges.FIXED if merges.is_ours(name)]
    return [*names, *LIBRARY, *ours, FLOAT32_OUTPUT]


def _comparisons() -> list[tuple[bool, list[str]]]:
    fixed = [name for name in merges.FIXED if merges.is_ours(name)]
    return [(False, fixed), (True, [*fixed, *(n for n in merges.TUNED if merges.is_ours(n))])]


def _lines(results: Results) -> list[tuple[str, Callable[[str], BySeed]]]:
    lines: list[tuple[str, Callable[[str], BySeed]]] = [
        ("base", lambda c: results.accuracy(c, "model", "base")),
        ("agents, each on its own task", lambda c: results.own(c, TASKS)),
    ]
    for name in [*_fixed_names(), *merges.TUNED]:
        lines.append((name, lambda c, name=name: heldout(results, c, name)))
    return lines


def _detail(results: Results, condition: str, kind: str, name: str, label: str) -> list[str]:
    return [
        label,
        *(_mean(results.task_accuracy(condition, kind, name, task)) for task in TASKS),
        _spread(results.accuracy(condition, kind, name)),
        _mean(results.accuracy(condition, kind, name, field="sampled")),
        _mean(results.accuracy(condition, kind, name, field="best_of_4")),
        _mean(results.retention(condition, kind, name)),
    ]


def _tuned_detail(results: Results, condition: str, name: str) -> list[str]:
    def of(values: Callable[[str], BySeed]) -> BySeed:
        rows = results.tuned(condition, name).items()
        return {seed: values(row["chosen"])[seed] for seed, row in rows}

    return [
        name,
        *(
            _mean(of(lambda m, task=task: results.task_accuracy(condition, "grid", m, task)))
            for task in TASKS
        ),
        _spread(of(lambda m: results.accuracy(condition, "grid", m))),
        _mean(of(lambda m: results.accuracy(condition, "grid", m, field="sampled"))),
        _mean(of(lambda m: results.accuracy(condition, "grid", m, field="best_of_4"))),
        _mean(of(lambda m: results.retention(condition, "grid", m))),
    ]


def _overlap_cells(agents: list[dict]) -> list[str]:
    degrees = [
        [d / sum(agent["overlap_degree"]) for d in agent["overlap_degree"]] for agent in agents
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
    share = f"{fmean(half.values()) / total:.2f}" if abs(total) > 0.01 else NOTHING
    columns = [gain(whole), unique, part("unique, diluted"), part("shared"), half]
    return [*(_gain(values) for values in columns), share]


def merges_epsilon() -> float:
    """The threshold at which overlaps are shown, which is the methods' default."""
    from benchmarks.agents.regions import EPSILON

    return EPSILON


def _short(label: str) -> str:
    return " ".join(label.split(" ")[1:])


def _mean(values: BySeed) -> str:
    return f"{fmean(values.values()):.3f}" if values else NOTHING


def _spread(values: BySeed) -> str:
    if not values:
        return NOTHING
    summary = summarise(list(values.values()))
    spread = "" if summary.deviation is None else f" ± {summary.deviation:.3f}"
    return f"{summary.mean:.3f}{spread}"


def _gain(values: BySeed) -> str:
    return f"{100 * fmean(values.values()):+.1f}"


def _signed(values: BySeed, reference: BySeed) -> str:
    difference = paired_difference(values, reference)
    error = difference.standard_error
    spread = "" if error is None else f" ± {100 * error:.1f}"
    return f"{100 * difference.mean:+.1f}{spread}"


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f}–{high:.0f}"
