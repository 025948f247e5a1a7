"""How the figures look: nothing is told by colour alone."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from mergekit_ram.names import labels
from mergekit_ram.record.schema import Interval, OverlapRecord
from mergekit_ram.show import wording
from mergekit_ram.show.page import palette

COLOURS = tuple(colour.day for colour in palette.AGENTS)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", ".", "x", "-", "\\", "+", "|")
COLOUR_SCALE = [[0, palette.SCALE[0].day], [1, palette.SCALE[1].day]]
INK = palette.INK.day
MARK_COLOUR = palette.GUIDE.day
"""Of lines that mark a value, and of intervals."""

CURVES_HEIGHT = 340
BAR_HEIGHT = 34
LEGEND_ROW = 20
MOST_TICKS = 5
WHOLE_AXIS = 1.03
"""End of an axis that reaches the whole, so that a point there is not cut."""
WIDER = 3
"""Pixels by which a curve is wider than one that lies upon it."""

FRAME_HEIGHT = 110
"""Of an axis with its title, and of the margins."""

HATCH = {"fillmode": "overlay", "solidity": 0.12, "fgopacity": 0.5}
"""Of bars; their numbers stand beside them."""

EDGE = {"color": MARK_COLOUR, "width": 1}
GAP = {"color": palette.PANEL.day, "width": 2}
"""Around bars that touch each other."""

ROOM_FOR_TEXT = 1.5
"""How far an axis reaches beyond the longest bar, whose number stands beside it."""

MARGIN = {"l": 10, "r": 16, "t": 16, "b": 10}


@dataclass(frozen=True)
class Choice:
    """One question that a reader answers to choose the trace to see."""

    label: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """One plot with the words that belong to it.

    With ``choices`` so many traces are seen at a time as belong ``together``, of those ordered by
    the first choice, then by the second.
    """

    name: str
    title: str
    caption: str
    plot: go.Figure
    min_width: int = 0
    choices: tuple[Choice, ...] = ()
    together: int = 1
    """Traces that are seen at a time."""


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


def mark_coinciding(curves: Sequence[go.Scatter], names: Sequence[str]) -> str:
    """Make curves that lie upon each other differ in width, and say in words which they are."""
    groups: dict[tuple[float | None, ...], list[int]] = {}
    for number, curve in enumerate(curves):
        heights = tuple(None if value is None else round(value, 6) for value in curve.y)
        if any(height is not None for height in heights):
            groups.setdefault(heights, []).append(number)
    said = []
    for group in groups.values():
        for place, number in enumerate(group):
            # The first is drawn first, and is seen on both sides of the others.
            curves[number].line.width += WIDER * (len(group) - 1 - place)
        if len(group) > 1:
            first = ", ".join(names[number] for number in group[:-1])
            said.append(f"The curves of {first} and {names[group[-1]]} coincide.")
    return " ".join(said)


def share_axis(values: Iterable[float | None], room: float = 1.0) -> dict[str, Any]:
    """An axis of shares, from 0 to the largest and never far beyond the whole.

    Args:
        values: that are drawn.
        room: beyond the largest, as a factor.
    """
    largest = max((value for value in values if value is not None), default=0.0)
    end = largest * room if room > 1 else min(WHOLE_AXIS, 1.1 * largest)
    return {
        "tickformat": ".3~%",
        "range": [0, end or 1.0],
        "tickvals": _ticks(min(1.0, end or 1.0)),
    }


def _ticks(end: float) -> list[float]:
    """Round shares from 0 to the end, at most five steps of them."""
    exponent = math.floor(math.log10(end))
    steps = [factor * 10.0**exponent for factor in (0.1, 0.2, 0.25, 0.5, 1, 2)]
    step = next((step for step in steps if end / step <= MOST_TICKS), end)
    return [round(step * number, 12) for number in range(int(end / step + 1e-9) + 1)]


def plot(
    traces: Sequence[Any], height: int, frame: go.Figure | None = None, **layout: Any
) -> go.Figure:
    """A plot as wide as its place; the page adds the colours of its surroundings.

    Args:
        traces: to draw.
        height: of all, in pixels.
        frame: several pairs of axes, where one is not enough.
        layout: plotly's.
    """
    drawn = frame or go.Figure()
    drawn.add_traces(list(traces))
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


def beside(texts: Sequence[str], error: Mapping[str, Any] | None) -> list[str]:
    """The numbers beside bars, but for those whose intervals are drawn there."""
    if error is None:
        return list(texts)
    drawn = zip(error["array"], error["arrayminus"], strict=True)
    return ["" if any(bounds) else text for text, bounds in zip(texts, drawn, strict=True)]


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
