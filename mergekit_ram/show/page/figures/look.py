"""How the figures look: nothing is told by colour alone."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from mergekit_ram.names import labels
from mergekit_ram.record.schema import Interval, OverlapRecord
from mergekit_ram.show import wording

# Okabe and Ito's, in an order in which neighbours differ in lightness; grey for their black,
# which a dark page would swallow.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#999999",
    "#F0E442",
)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", ".", "x", "-", "\\", "+", "|")
COLOUR_SCALE = "Cividis"

MARK_COLOUR = "#999999"
"""Of lines that mark a value; seen on white and on black."""

CURVES_HEIGHT = 340
BAR_HEIGHT = 34
LEGEND_ROW = 20
FRAME_HEIGHT = 110
"""Of an axis with its title, and of the margins."""

HATCH = {"fillmode": "overlay", "solidity": 0.12, "fgopacity": 0.5}
"""Of bars: seen, and yet a number on it can be read."""

EDGE = {"color": MARK_COLOUR, "width": 1}
"""Around bars and markers: the darkest would be lost on a dark page."""

MARGIN = {"l": 10, "r": 16, "t": 16, "b": 10}


@dataclass(frozen=True)
class Choice:
    """One question that a reader answers to choose the trace to see."""

    label: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """One plot with the words that belong to it.

    With ``choices`` one trace is seen at a time, of those ordered by the first choice, then by
    the second.
    """

    name: str
    title: str
    caption: str
    plot: go.Figure
    min_width: int = 0
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Agent:
    """How one agent is drawn, the same in every plot."""

    model: str
    label: str
    colour: str
    symbol: str
    dash: str
    pattern: str

    @property
    def line(self) -> dict[str, Any]:
        """Of its curves."""
        return {"color": self.colour, "dash": self.dash, "width": 2}

    def marker(self, size: int = 8) -> dict[str, Any]:
        """Of the points on its curves."""
        return {
            "color": self.colour,
            "symbol": self.symbol,
            "size": size,
            "line": EDGE,
        }


def agents(record: OverlapRecord) -> tuple[Agent, ...]:
    """The record's agents in their order."""
    models = [agent.model for agent in record.agents]
    return tuple(
        Agent(
            model=model,
            label=plain(label),
            colour=COLOURS[number % len(COLOURS)],
            symbol=SYMBOLS[number % len(SYMBOLS)],
            dash=DASHES[number % len(DASHES)],
            pattern=PATTERNS[number % len(PATTERNS)],
        )
        for number, (model, label) in enumerate(zip(models, labels(models), strict=True))
    )


def plain(name: str) -> str:
    """A name as text: plotly reads tags in its texts."""
    return html.escape(name, quote=False)


def lines(*texts: str) -> str:
    """Texts below each other, without the empty ones."""
    return "<br>".join(text for text in texts if text)


def interval(part: Any, field: str, form: wording.Form) -> str:
    """The 95 % interval of a field of a part of a record; empty where it has none."""
    return wording.interval((part.interval or {}).get(field), form)


def steps(number: int) -> list[str]:
    """Colours of an ordered series, each lighter than the one before."""
    positions = [step / max(number - 1, 1) for step in range(number)]
    found: list[str] = sample_colorscale(COLOUR_SCALE, positions)
    return found


def plot(traces: Sequence[Any], height: int, **layout: Any) -> go.Figure:
    """A plot as wide as its place; the page adds the colours of its surroundings."""
    drawn = go.Figure(data=list(traces))
    drawn.update_layout(
        template=go.layout.Template(),
        height=height,
        margin=MARGIN,
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        hoverlabel={"align": "left"},
        # A finger that drags means to scroll the page.
        dragmode=False,
        **layout,
    )
    drawn.update_xaxes(automargin=True)
    drawn.update_yaxes(automargin=True)
    return drawn


def bars_height(bars: int, legend: int = 0) -> int:
    """Of a plot with so many bars above each other and so many entries in its legend."""
    return FRAME_HEIGHT + BAR_HEIGHT * bars + legend_height(legend)


def legend_height(entries: int) -> int:
    """On a narrow screen each entry has a row."""
    return LEGEND_ROW * entries


def error_bars(
    values: Sequence[float | None], intervals: Sequence[Interval | None]
) -> dict[str, Any] | None:
    """Bars over the intervals; null where no value has a finite one."""
    above, below = [], []
    for value, interval in zip(values, intervals, strict=True):
        known = value is not None and interval is not None and all(map(math.isfinite, interval))
        above.append(interval[1] - value if known else 0.0)  # type: ignore[index, operator]
        below.append(value - interval[0] if known else 0.0)  # type: ignore[index, operator]
    if not any(above) and not any(below):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "color": MARK_COLOUR,
        "thickness": 1.5,
    }


def upright(x: float) -> dict[str, Any]:
    """A line across the whole plot."""
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": MARK_COLOUR, "dash": "dot", "width": 2},
    }
