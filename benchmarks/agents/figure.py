"""The figure: what the base, the agents and the merges get right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import TASKS

from benchmarks.agents import merges
from benchmarks.agents.conditions import BY_NAME
from benchmarks.agents.results import BySeed, Results, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Mark:
    """How a group of lines is drawn, and what the legend calls it."""

    name: str
    colour: str
    shape: str


# Okabe and Ito's colours, which colour-blind readers can tell apart, in those tones that have a
# contrast of at least 3 : 1 to white and to dark pages; shapes say the same. Text and axes are a
# grey between the two.
MODELS = Mark("base and agents", "#7A7A7A", "s")
BASELINES = Mark("other merges", "#0072B2", "o")
OURS = Mark("this package's merges", "#D55E00", "D")
INK = "#7A7A7A"
BASE, AGENTS = "base", "agents, own task"
SHOWN = (
    *("mean of task vectors", "sum of task vectors", "TIES", "DARE + TIES", "WUDI"),
    *("task arithmetic, tuned", "TIES, tuned"),
    *("RAM", "RAM+", "RAM+, tuned overlap_power", merges.DIRECTIONS),
)
PANEL_WIDTH, ROW_HEIGHT, LEGEND_HEIGHT = 3.6, 0.28, 0.6
PANELS_ACROSS = 3
MEAN_SIZE, BASE_SIZE = 6, 5
MARGIN = 0.02


def draw(results: Results, file: Path) -> None:
    """Write one panel per condition: means over bases, their intervals, and the bases."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text stays text in an SVG, and the same figures give the same bytes.
    style = {"svg.fonttype": "none", "svg.hashsalt": "agents", "text.color": INK}
    style |= dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), INK)
    labels = [
        label
        for label in (BASE, AGENTS, *SHOWN)
        if all(_values(results, condition, label) for condition in results.conditions)
    ]
    across = min(PANELS_ACROSS, len(results.conditions))
    down = math.ceil(len(results.conditions) / across)
    height = ROW_HEIGHT * (len(labels) + 4) * down + LEGEND_HEIGHT
    with pyplot.rc_context(style):
        figure, panels = pyplot.subplots(
            down,
            across,
            sharex=True,
            sharey=True,
            squeeze=False,
            figsize=(PANEL_WIDTH * across + 1.5, height),
        )
        for panel in panels.flat[len(results.conditions) :]:
            panel.set_visible(False)
        for panel, condition in zip(panels.flat, results.conditions, strict=False):
            _panel(panel, results, condition, labels)
        panels[0, 0].invert_yaxis()  # shared: the first label on top
        panels[0, 0].set_xlim(_lowest(results, labels) - MARGIN, 1)
        _legend(figure)
        figure.tight_layout(rect=(0, LEGEND_HEIGHT / height - 0.02, 1, 1))
        figure.savefig(file, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _panel(panel: Axes, results: Results, condition: str, labels: Sequence[str]) -> None:
    for row, label in enumerate(labels):
        values = list(_values(results, condition, label).values())
        found, mark = summarise(values), _mark(label)
        panel.plot(values, [row] * len(values), ".", color=mark.colour, ms=BASE_SIZE, alpha=0.6)
        panel.errorbar(
            found.mean,
            row,
            xerr=found.error,
            fmt=mark.shape,
            color=mark.colour,
            markersize=MEAN_SIZE,
            elinewidth=1.2,
        )
        right = panel.get_yaxis_transform()
        panel.text(1.02, row, f"{found.mean:.3f}", va="center", fontsize=8, transform=right)
    panel.set_yticks(range(len(labels)), labels)
    bases = "1 base" if len(values) == 1 else f"{len(values)} bases"
    panel.set_title(f"{condition} ({bases})\n{BY_NAME[condition].words}", color=INK, fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="both", color=INK, alpha=0.2, linewidth=0.6)
    panel.patch.set_alpha(0)


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    def handle(label: str, **look: Any) -> Line2D:
        return Line2D([], [], **{"linestyle": "none", "label": label, **look})

    groups = [
        handle(mark.name, color=mark.colour, marker=mark.shape, markersize=MEAN_SIZE)
        for mark in (MODELS, BASELINES, OURS)
    ]
    how = [
        handle("one base", color=INK, marker=".", markersize=BASE_SIZE, alpha=0.6),
        handle("mean ± standard deviation between bases", color=INK, marker="|", linestyle="-"),
    ]
    figure.legend(handles=[*groups, *how], loc="lower center", ncols=5, frameon=False, fontsize=9)
    figure.supxlabel("mean accuracy over the three tasks", color=INK, fontsize=10, y=0.035)


def _lowest(results: Results, labels: Sequence[str]) -> float:
    """The smallest value that is drawn, intervals included."""
    found = [
        summarise(list(_values(results, condition, label).values()))
        for condition in results.conditions
        for label in labels
    ]
    return min(each.mean - (each.error or 0.0) for each in found)


def _values(results: Results, condition: str, label: str) -> BySeed:
    if label == BASE:
        return results.accuracy(condition, "model", BASE)
    if label == AGENTS:
        return results.own((condition, task) for task in TASKS)
    return results.merged(condition, label)


def _mark(label: str) -> Mark:
    if label in (BASE, AGENTS):
        return MODELS
    return OURS if merges.is_ours(label) else BASELINES
