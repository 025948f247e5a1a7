"""Bars and matrices, as data for plotly, and the styles of all charts.

Nothing is told by colour alone. A colour has one meaning, and serves a light and a dark page: hues
have a contrast of 3:1 to both, and the shades of a series let more or less of the page through.
What all charts have in common, as the ink of the page, is in page.js.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

# How far an axis reaches, as a factor: beyond the longest bar, whose number stands beside it,
# beyond a line, and beyond the whole, so that a point there is not cut.
ROOM_FOR_TEXT = 1.5
ROOM_FOR_LINE = 1.05
WHOLE_AXIS = 1.03
MOST_STEPS = 5


@dataclass(frozen=True)
class Panel:
    """A chart of the page.

    With ``choices`` as many traces are seen at a time as belong ``together``, of those ordered by
    the first choice, then by the second.
    """

    name: str
    plot: Plot
    note: str = ""
    """A sentence about this record."""

    min_width: int = 0
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    together: int = 1


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
    record: OverlapRecord, column: Column, colour: str | list[str], pattern: str | list[str] = ""
) -> Plot:
    """A bar for each agent's figure, with its number and its 95 % interval.

    Args:
        record: of the agents.
        column: of the figure.
        colour: of all bars, or of each.
        pattern: like the colour.
    """
    values = [column.value(agent) for agent in record.agents]
    styles = styles_of(record)
    cells = list(zip(styles, record.agents, strict=True))
    return {
        "type": "bar",
        "orientation": "h",
        "name": column.title,
        "x": values,
        "y": [style.label for style in styles],
        "text": [column.cell(agent).text for agent in record.agents],
        "hovertext": [f"{style.model}<br>{column.words(agent)}" for style, agent in cells],
        "error_x": error_bars(values, [column.bounds(agent) for agent in record.agents]),
        "marker": {
            "color": colour,
            "line": {"color": GUIDE, "width": 1},
            "pattern": {"shape": pattern},
        },
    }


def bars(traces: Sequence[Plot], title: str, whole: float | None = None) -> Plot:
    """Horizontal bars with their numbers beside them, grouped by agent.

    Args:
        traces: made by ``bar``.
        title: of the axis.
        whole: where a line marks the whole.
    """
    ends = [0.0]
    for trace in traces:
        above = (trace["error_x"] or {}).get("array", ())
        reach = zip_longest(trace["x"], above, fillvalue=0.0)
        ends += [value + more for value, more in reach if value is not None]
        # No number stands upon an interval.
        drawn = zip_longest(trace["text"], above, fillvalue=0.0)
        trace["text"] = ["" if more else text for text, more in drawn]
        trace["textposition"] = "outside"
    low, high = min(ends), max(ends)
    end = max(high * ROOM_FOR_TEXT, ROOM_FOR_LINE * (whole or 0.0)) or 1.0
    start = low + (low - end) * (ROOM_FOR_TEXT - 1) if low < 0 else 0.0
    shapes = [] if whole is None else [upright(whole)]
    return _bars(traces, len(traces), title, {"range": [start, end]}, shapes=shapes)


def stacked_bars(traces: Sequence[Plot], title: str) -> Plot:
    """Bars whose parts are shares of a whole, with their numbers on them."""
    ticks = {"tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1]}
    return _bars(traces, 1, title, {"range": [0, WHOLE_AXIS], **ticks}, barmode="stack")


def _bars(traces: Sequence[Plot], beside: int, title: str, xaxis: Plot, **layout: Any) -> Plot:
    """Bars in groups of so many beside each other."""
    group = BAR_HEIGHT * beside + GROUP_GAP
    legend = LEGEND_ROW_HEIGHT * len(traces) if len(traces) > 1 else 0
    return plot(
        traces,
        FRAME_HEIGHT + group * len(traces[0]["y"]) + legend,
        xaxis={"title": {"text": title}, **xaxis},
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


def share_ticks(end: float) -> Plot:
    """Ticks at round shares up to an axis' end or the whole, in at most five steps."""
    end = min(1.0, end)
    power = 10.0 ** math.floor(math.log10(end))
    steps = [part * power for part in (0.1, 0.2, 0.25, 0.5, 1, 2)]
    step = next(step for step in steps if end / step <= MOST_STEPS)
    ticks = [round(step * number, 12) for number in range(int(end / step + 1e-9) + 1)]
    return {"tickformat": ".3~%", "tickvals": ticks}


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
