"""The figure: what the base, the agents and the merges get right."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tasks import TASKS

from benchmarks.agents.findings.lines import heldout
from benchmarks.agents.findings.results import BySeed, Results
from benchmarks.agents.merges import catalogue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart, and which stand out
# against white and against dark pages. Text and axes are a grey that does the same.
COLOURS = {"base and agents": "#999999", "baselines": "#56B4E9", "RAM and RAM+": "#E69F00"}
INK = "#808080"
SHOWN = (
    "mean of task vectors",
    "sum of task vectors",
    "TIES",
    "DARE + TIES",
    "WUDI",
    "task arithmetic, tuned",
    "TIES, tuned",
    "RAM",
    "RAM+",
    "RAM+, tuned scale and overlap_power",
)
BAR = 0.72
PANEL_WIDTH, ROW_HEIGHT = 3.4, 0.32
PANELS_ACROSS = 3


def draw(results: Results, file: Path) -> None:
    """Write one panel per condition: bars are means over bases, dots are the bases."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text stays text in an SVG, and the same figures give the same bytes.
    style = {"svg.fonttype": "none", "svg.hashsalt": "agents", "text.color": INK}
    style |= dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), INK)
    labels = ["base", "agents, own task", *SHOWN]
    with pyplot.rc_context(style):
        across = min(PANELS_ACROSS, len(results.conditions))
        down = math.ceil(len(results.conditions) / across)
        figure, panels = pyplot.subplots(
            down,
            across,
            sharex=True,
            sharey=True,
            squeeze=False,
            figsize=(PANEL_WIDTH * across, ROW_HEIGHT * (len(labels) + 3) * down),
        )
        for panel in panels.flat[len(results.conditions) :]:
            panel.set_visible(False)
        for panel, condition in zip(panels.flat, results.conditions, strict=False):
            _panel(panel, results, condition, labels)
        panels[0, 0].invert_yaxis()  # shared: the first label on top
        figure.supxlabel(
            "mean accuracy over the three tasks (bars: mean over bases; dots: bases)", color=INK
        )
        figure.tight_layout()
        figure.savefig(file, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _panel(panel: Axes, results: Results, condition: str, labels: list[str]) -> None:
    for row, label in enumerate(labels):
        values = list(_values(results, condition, label).values())
        panel.barh(row, fmean(values), height=BAR, color=_colour(label))
        panel.plot(values, [row] * len(values), "o", color=INK, markersize=4, mec="white", mew=0.5)
        panel.text(0.02, row, f"{fmean(values):.3f}", va="center", fontsize=8, color="black")
    panel.set_yticks(range(len(labels)), labels)
    panel.set_xlim(0, 1)
    panel.set_title(condition, color=INK, fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.patch.set_alpha(0)


def _values(results: Results, condition: str, label: str) -> BySeed:
    if label == "base":
        return results.accuracy(condition, "model", "base")
    if label == "agents, own task":
        return results.own(condition, TASKS)
    return heldout(results, condition, label)


def _colour(label: str) -> str:
    if label in ("base", "agents, own task"):
        return COLOURS["base and agents"]
    return COLOURS["RAM and RAM+" if catalogue.is_ours(label) else "baselines"]
