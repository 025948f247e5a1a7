"""Bars and matrices, as data for plotly, and the styles of all charts.

Nothing is told by colour alone. A colour has one meaning, and serves a light and a dark page: hues
have a contrast of 3:1 to both, and the shades of a series let more or less of the page through.
What all charts have in common, as the ink of the page, is in page.js.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.columns import Bounds, Column
from mergekit_ram.show.tables import agent_names

Plot = dict[str, Any]
Cells = dict[frozenset[str], tuple[float | None, str, str]]
"""Value, text, and text at the pointer, by the names of row and column."""

# By the agent's place; a ninth has the first one's again, with another symbol and dash.
AGENTS = ("#1f7ae3", "#da6d06", "#198e53", "#e33b51", "#049bac", "#cd38b0", "#8e8e07", "#7861e8")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", ".", "x", "-", "\\", "+", "|")

# Red, green and blue of series: overlap degrees, methods, λ as meant and stored, cells of maps.
DEGREES = (109, 124, 158)
METHODS = (148, 119, 89)
FACTORS = (157, 107, 148)
CELLS = (49, 127, 196)

# Opacity of the ends of a series, and of a cell of 0. The page's ink can be read on all of them.
STRONGEST, WEAKEST, NOTHING = 0.7, 0.15, 0.04

GUIDE = "#737c8c"
"""Of lines that mark a value, of intervals and edges."""

# Heights and widths in pixels.
BAR_HEIGHT = 22
GROUP_GAP = 14
CELL_HEIGHT = 44
NUMBERS_HEIGHT = 60
# Of an axis with its title, and of the margins.
FRAME_HEIGHT = 110
# On a narrow screen each entry of a legend has a row.
LEGEND_ROW_HEIGHT = 20

# Right of bars, for the number of the longest one.
ROOM_FOR_TEXT = 70

WHOLE_AXIS = 1.03
"""How far an axis of shares reaches, so that a point at 1 is not cut."""

QUARTERS = (0, 0.25, 0.5, 0.75, 1)


@dataclass(frozen=True)
class Panel:
    """A chart of the page.

    Of several ``choices`` one is seen at a time: the plot has as many traces of each, in order.
    """

    name: str
    plot: Plot
    note: str = ""
    """A sentence about this record."""

    min_width: int = 0
    choices: Sequence[str] = ()


@dataclass(frozen=True)
class Style:
    """How one agent is named and drawn in every chart."""

    model: str
    label: str
    colour: str
    symbol: str
    dash: str
    pattern: str


def plain(name: str) -> str:
    """A name as text: plotly reads tags in its texts."""
    return html.escape(name, quote=False)


def styles_of(record: OverlapRecord) -> list[Style]:
    """The styles of the record's agents, in their order."""
    return [
        Style(
            plain(model),
            plain(label),
            *(kind[place % len(kind)] for kind in (AGENTS, SYMBOLS, DASHES, PATTERNS)),
        )
        for place, (model, label) in enumerate(agent_names(record).items())
    ]


def shades(colour: tuple[int, int, int], number: int) -> list[str]:
    """The colours of an ordered series, from the strongest to the weakest."""
    step = (STRONGEST - WEAKEST) / max(number - 1, 1)
    return [_opaque(colour, STRONGEST - step * place) for place in range(number)]


def _opaque(colour: tuple[int, int, int], opacity: float) -> str:
    return f"rgba{(*colour, round(opacity, 3))}"


def bar(
    record: OverlapRecord,
    column: Column,
    colour: str | list[str],
    pattern: str | list[str] = "",
    origin: float = 0.0,
) -> Plot:
    """A bar for each agent's figure, with its number or its 95 % interval.

    Args:
        record: of the agents.
        column: of the figure.
        colour: of all bars, or of each.
        pattern: like the colour.
        origin: the figure at which bars begin.
    """
    values = [column.single(agent) for agent in record.agents]
    styles = styles_of(record)
    cells = list(zip(styles, record.agents, strict=True))
    intervals = error_bars(values, [column.bounds(agent) for agent in record.agents])
    return {
        "type": "bar",
        "orientation": "h",
        "name": column.title,
        # A base of its own keeps a bar from being stacked.
        "base": origin or None,
        "x": [None if value is None else value - origin for value in values],
        "y": [style.label for style in styles],
        # No number stands upon an interval.
        "text": None if intervals else [column.cell(agent).text for agent in record.agents],
        "hovertext": [f"{style.model}<br>{column.words(agent)}" for style, agent in cells],
        "error_x": intervals,
        "marker": {
            "color": colour,
            "line": {"color": GUIDE, "width": 1},
            "pattern": {"shape": pattern},
        },
    }


def bars(traces: Sequence[Plot], xaxis: Plot, whole: float | None = None) -> Plot:
    """Horizontal bars with their numbers beside them, grouped by agent.

    Args:
        traces: made by ``bar``.
        xaxis: plotly's.
        whole: where a line marks the whole.
    """
    shapes = [] if whole is None else [upright(whole)]
    traces = [{**trace, "textposition": "outside"} for trace in traces]
    room = {"shapes": shapes, "margin": {"r": ROOM_FOR_TEXT}}
    return _bars(traces, len(traces), xaxis, **room)


def stacked_bars(traces: Sequence[Plot], title: str) -> Plot:
    """Bars whose parts are shares of a whole, with their numbers on them."""
    return _bars(traces, 1, shares(title, 1), barmode="stack")


def shares(title: str, largest: float) -> Plot:
    """An axis of shares from 0 to the whole, or a little beyond the largest one."""
    end = min(WHOLE_AXIS, 1.1 * largest or 1.0)
    ticks = {"tickvals": QUARTERS} if end > 0.5 else {"nticks": len(QUARTERS)}
    return {"title": {"text": title}, "range": [0, end], "tickformat": ".3~%", **ticks}


def _bars(traces: Sequence[Plot], beside: int, xaxis: Plot, **layout: Any) -> Plot:
    """Bars in groups of so many beside each other."""
    group = BAR_HEIGHT * beside + GROUP_GAP
    legend = LEGEND_ROW_HEIGHT * len(traces) if len(traces) > 1 else 0
    return plot(
        traces,
        FRAME_HEIGHT + group * len(traces[0]["y"]) + legend,
        xaxis=xaxis,
        yaxis={"type": "category", "autorange": "reversed"},
        **layout,
    )


def matrix(names: Sequence[str], cells: Cells, top: float) -> Plot:
    """A square of cells, each as strong as its value.

    Args:
        names: of rows and columns, which are numbered.
        cells: a null value leaves a cell without a colour.
        top: the value of the strongest colour.
    """
    rows = [
        [cells.get(frozenset((one, other)), (None, "", "")) for other in names] for one in names
    ]
    numbers = [str(number) for number in range(1, len(names) + 1)]
    values, texts, words = ([[cell[part] for cell in row] for row in rows] for part in range(3))
    axis = {"type": "category", "showgrid": False}
    return plot(
        [heat(numbers, numbers, values, top, text=texts, hovertext=words, xgap=2, ygap=2)],
        NUMBERS_HEIGHT + CELL_HEIGHT * len(names),
        xaxis=axis,
        yaxis={**axis, "autorange": "reversed"},
    )


def heat(
    x: Sequence[str], y: Sequence[str], z: Sequence[Sequence[Any]], top: float, **more: Any
) -> Plot:
    """The cells of a matrix or a map, from 0 to the value of the strongest colour."""
    ends = [[place, _opaque(CELLS, opacity)] for place, opacity in ((0, NOTHING), (1, STRONGEST))]
    scale = {"zmin": 0, "zmax": top, "colorscale": ends, "showscale": False}
    text = {"texttemplate": "%{text}", "hoverinfo": "text"}
    return {"type": "heatmap", "x": x, "y": y, "z": z, **scale, **text, **more}


def plot(traces: Sequence[Plot], height: int, **layout: Any) -> Plot:
    """A plot as wide as its place."""
    return {"data": traces, "layout": {"height": height, **layout}}


def error_bars(values: Sequence[float | None], intervals: Sequence[Bounds]) -> Plot | None:
    """Bars over the intervals; null where no value has a finite one."""
    ends = [
        (interval[1] - value, value - interval[0])
        if value is not None and interval and all(map(math.isfinite, interval))
        else (0.0, 0.0)
        for value, interval in zip_longest(values, intervals)
    ]
    if not any(map(any, ends)):
        return None
    above, below = zip(*ends, strict=True)
    style = {"symmetric": False, "color": GUIDE, "thickness": 1.5}
    return {"type": "data", "array": above, "arrayminus": below, **style}


def upright(x: float) -> Plot:
    """A dotted line across the whole plot."""
    line = {"color": GUIDE, "dash": "dot", "width": 2}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}
