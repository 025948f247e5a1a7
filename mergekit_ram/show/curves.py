"""Curves of a record's page, which show what another ε, r or α would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from mergekit_ram.overlap import DEFAULT_ALPHA, DEFAULT_R
from mergekit_ram.record.layers import different
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import charts, columns
from mergekit_ram.show.charts import Panel, Plot, Style
from mergekit_ram.show.columns import Bounds

# How far the axes of λ reach: at least, beyond the present value as a factor, and beyond the
# largest finite ρ, from which on every curve is level, unless that is far away.
LEAST_R = 0.3
LEAST_ALPHA = 4.0
BEYOND = 1.5
BEYOND_RATIO = 1.05
MOST_ALPHA = 40.0

STEPS = 60

HEIGHT = 340
# Of markers, and of those at the value in use, in pixels.
MARKER, LARGE_MARKER = 8, 12

# Of an axis: beyond what is drawn, as a share, and where all values are the same.
ROOM = 0.08
LEAST_SPAN = 0.05

ZERO_NOTE = " ε = 0 has no place on this axis; the table below has it."

OVER_EPSILON = (
    ("epsilon-density", columns.DENSITY, 0.0),
    ("epsilon-unique-share", columns.UNIQUE_SHARE, 0.0),
    ("epsilon-overlap-unique-ratio", columns.RATIO, 0.0),
    ("epsilon-rescale", columns.RESCALE, 1.0),
)
"""Name, what is drawn, and what the axis reaches down to."""


def over_epsilon(record: OverlapRecord) -> Iterator[Panel]:
    """A chart for each figure that depends on ε. Of one agent alone everything is unique."""
    found = sorted(record.thresholds or (), key=lambda threshold: threshold.epsilon)
    # A logarithmic axis has no place for 0.
    positive = [threshold for threshold in found if threshold.epsilon > 0]
    epsilons = [threshold.epsilon for threshold in positive]
    marked = max(different(record.epsilon))
    ticks = {"tickvals": epsilons, "ticktext": [columns.setting(epsilon) for epsilon in epsilons]}
    for name, column, least in OVER_EPSILON if len(record.agents) > 1 else OVER_EPSILON[:1]:
        drawn = [
            curve(
                style,
                epsilons,
                [column.single(threshold.agents[place]) for threshold in positive],
                [column.bounds(threshold.agents[place]) for threshold in positive],
            )
            for place, style in enumerate(charts.styles_of(record))
        ]
        values = [value for trace in drawn for value in trace["y"] if value is not None]
        if not values:
            continue
        yield Panel(
            name,
            curves(
                drawn,
                {"type": "log", "title": {"text": "ε"}, **ticks},
                charts.shares(column.title, max(values))
                if column.form is columns.share
                else {"title": {"text": column.title}, "range": span([least, *values])},
                marked or None,
            ),
            ZERO_NOTE if len(positive) < len(found) else "",
        )


def span(values: Sequence[float]) -> list[float]:
    """The ends of an axis, with room around what is drawn."""
    room = ROOM * max(max(values) - min(values), LEAST_SPAN)
    return [min(values) - room, max(values) + room]


def rescale(ratio: float | None, r: float, alpha: float) -> float:
    """λ = 1 + r · min(ρ, α), where null is an infinite ρ."""
    return 1.0 + r * min(math.inf if ratio is None else ratio, alpha)


def over_settings(record: OverlapRecord) -> Iterator[Panel]:
    """λ of each agent's ρ, over r and over α; of one agent alone it is 1 whatever they are."""
    if len(record.agents) < 2:
        return
    given = {"r": record.settings.r, "α": record.settings.alpha}
    r = max(different(given["r"]), default=DEFAULT_R)
    alpha = max(different(given["α"]), default=DEFAULT_ALPHA)
    note = "".join(
        f" {symbol} differs by tensor, {columns.spanned(value)}: the largest is drawn."
        for symbol, value in given.items()
        if isinstance(value, tuple)
    )
    if None in given.values():
        note = (
            f" {record.merge_method} itself has no λ: drawn are the defaults of ram_plus, "
            f"r = {r:g} and α = {alpha:g}."
        )
    largest = max(agent.overlap_unique_ratio or 0.0 for agent in record.agents)
    end = max(LEAST_ALPHA, BEYOND * alpha, min(BEYOND_RATIO * largest, MOST_ALPHA))
    over_r = _over(record, "r", r, max(LEAST_R, BEYOND * r), lambda p, x: rescale(p, x, alpha))
    over_alpha = _over(record, "α", alpha, end, lambda p, x: rescale(p, r, x))
    yield Panel("rescale-r", over_r, f"Here α = {alpha:g}.{note}")
    yield Panel("rescale-alpha", over_alpha, f"Here r = {r:g}.{note}")


def _over(
    record: OverlapRecord,
    symbol: str,
    present: float,
    end: float,
    factor: Callable[[float | None, float], float],
) -> Plot:
    """λ over one setting up to an end; ``factor`` takes ρ and the setting."""
    grid = sorted({present, *(end * step / STEPS for step in range(STEPS + 1))})
    sizes = [LARGE_MARKER if x == present else 0 for x in grid]
    drawn = [
        curve(style, grid, [factor(agent.overlap_unique_ratio, x) for x in grid], sizes=sizes)
        for style, agent in zip(charts.styles_of(record), record.agents, strict=True)
    ]
    return curves(
        drawn,
        {"title": {"text": symbol}, "range": [0, end]},
        {
            "title": {"text": "λ"},
            "range": span([1.0, *(value for trace in drawn for value in trace["y"])]),
        },
        present,
    )


def curve(
    agent: Style,
    x: Sequence[float],
    y: Sequence[float | None],
    intervals: Sequence[Bounds] = (),
    sizes: int | Sequence[int] = MARKER,
) -> Plot:
    """Points of one agent and a line through them; sizes are of all markers, or of each."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": agent.label,
        "x": x,
        "y": y,
        "error_y": charts.error_bars(y, intervals),
        "line": {"color": agent.colour, "dash": agent.dash},
        "marker": {
            "color": agent.colour,
            "symbol": agent.symbol,
            "size": sizes,
            "line": {"color": charts.GUIDE, "width": 1},
        },
    }


def curves(traces: Sequence[Plot], xaxis: Plot, yaxis: Plot, marked: float | None) -> Plot:
    """Curves of the agents.

    Args:
        traces: made by ``curve``.
        xaxis: plotly's.
        yaxis: plotly's.
        marked: the value in use, which a line marks.
    """
    return charts.plot(
        traces,
        HEIGHT + charts.LEGEND_ROW_HEIGHT * len(traces),
        shapes=[] if marked is None else [charts.upright(marked)],
        xaxis=xaxis,
        yaxis=yaxis,
    )
