"""Where in the model the agents changed something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import wording
from mergekit_ram.show.page.figures import look
from mergekit_ram.show.page.layer_map import Cell, LayerMap

MOST_MULTIPLES = 8
"""Agents whose maps are seen at once; of more, one is chosen."""

MOST_IN_A_ROW = 4
MOST_WITH_DIGITS = 3
"""Maps in a row whose cells have room for digits."""

ROOM_FOR_ROWS = 1200
LARGEST_ROW = 22
SMALLEST_ROW = 8
NAMES_HEIGHT = 150
TITLE_HEIGHT = 36
NAMES_WIDTH = 130
DIGITS_WIDTH = 27
CELL_WIDTH = 12
GAP = 0.02
TITLE_SIZE = 13
DIGITS_SIZE = 9


@dataclass(frozen=True)
class Quantity:
    """What a map can show; ``whole`` is the count that the share is of."""

    title: str
    part_name: str
    whole_name: str
    value: Callable[[Cell], float | None]
    part: Callable[[Cell], int]
    whole: Callable[[Cell], int]


DENSITY = Quantity(
    title="density (active / parameters)",
    part_name="active",
    whole_name="parameters",
    value=lambda cell: cell.density,
    part=lambda cell: cell.active,
    whole=lambda cell: cell.numel,
)
UNIQUE_SHARE = Quantity(
    title="unique share (unique / active)",
    part_name="unique",
    whole_name="active",
    value=lambda cell: cell.unique_share,
    part=lambda cell: cell.unique,
    whole=lambda cell: cell.active,
)
QUANTITIES = (DENSITY, UNIQUE_SHARE)


def layer_map(record: OverlapRecord) -> look.Panel:
    """The agents' maps beside each other, of one quantity at a time and on one scale."""
    sums = LayerMap.of(record)
    drawn = look.agents(record)
    multiples = len(drawn) <= MOST_MULTIPLES
    places = len(drawn) if multiples else 1
    columns = min(places, MOST_IN_A_ROW)
    digits = columns <= MOST_WITH_DIGITS
    quantities = QUANTITIES if len(drawn) > 1 else QUANTITIES[:1]
    if multiples:
        traces = [
            _map(sums, agent, quantity, place, digits)
            for quantity in quantities
            for place, agent in enumerate(drawn)
        ]
    else:
        traces = [
            _map(sums, agent, quantity, 0, digits) for agent in drawn for quantity in quantities
        ]
    for trace in traces[places:]:
        trace.visible = False
    quantity_choice = look.Choice("quantity", tuple(quantity.title for quantity in quantities))
    agent_choice = look.Choice("agent", tuple(agent.model for agent in record.agents))
    choices = (quantity_choice,) if multiples else (agent_choice, quantity_choice)
    return look.Panel(
        name="layers",
        title="Layers and modules",
        caption="One row per layer, one column per module in the order of the model; experts of a "
        "layer are summed, and what belongs to no layer has the last row. Colours go from 0 to the "
        "highest share of all agents, so that maps can be compared; the numbers are per cent. An "
        "empty cell: no such module there, or for the unique share no active parameter.",
        plot=_drawn(sums, drawn[:places] if multiples else (), traces, columns),
        min_width=NAMES_WIDTH
        + (DIGITS_WIDTH if digits else CELL_WIDTH) * len(sums.modules) * columns,
        choices=choices if len(quantities) > 1 or not multiples else (),
        together=places,
    )


def _drawn(
    sums: LayerMap, titled: Sequence[look.Agent], traces: Sequence[go.Heatmap], columns: int
) -> go.Figure:
    rows = -(-max(len(titled), 1) // columns)
    lines = rows * max(len(sums.rows), 1)
    line = min(LARGEST_ROW, max(SMALLEST_ROW, ROOM_FOR_ROWS // lines))
    height = NAMES_HEIGHT + line * lines + TITLE_HEIGHT * rows
    frame = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=GAP,
        vertical_spacing=TITLE_HEIGHT / height if rows > 1 else None,
        subplot_titles=[agent.label for agent in titled] or None,
    )
    frame.update_annotations(font_size=TITLE_SIZE)
    plot = look.plot(traces, height, frame)
    plot.update_layout(margin_t=TITLE_HEIGHT)
    plot.update_xaxes(type="category", tickangle=-60, showgrid=False)
    plot.update_yaxes(type="category", autorange="reversed", showgrid=False)
    for row in range(1, rows + 1):
        plot.update_yaxes(title_text="layer", row=row, col=1)
    return plot


def _map(
    sums: LayerMap, agent: look.Agent, quantity: Quantity, place: int, digits: bool
) -> go.Heatmap:
    values = sums.table(agent.model, quantity.value)
    axis = str(place + 1) if place else ""
    return go.Heatmap(
        name=agent.label,
        x=[look.plain(module) for module in sums.modules],
        y=[look.plain(row) for row in sums.rows],
        z=values,
        zmin=0,
        zmax=sums.highest(quantity.value),
        colorscale=look.COLOUR_SCALE,
        text=[["" if value is None else f"{100 * value:.3g}" for value in row] for row in values],
        texttemplate="%{text}" if digits else None,
        textfont={"color": look.INK, "size": DIGITS_SIZE},
        hovertext=_in_words(sums, agent, quantity),
        hoverinfo="text",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        xaxis=f"x{axis}",
        yaxis=f"y{axis}",
        showscale=place == 0,
        colorbar={"tickformat": ".3~%", "thickness": 12, "nticks": 4},
    )


def _in_words(sums: LayerMap, agent: look.Agent, quantity: Quantity) -> list[list[str]]:
    return [
        [
            look.lines(
                f"{agent.label}, {look.plain(row)}, {look.plain(module)}",
                f"{wording.share(quantity.value(cell))}: "
                f"{quantity.part_name} {wording.count(quantity.part(cell))} of "
                f"{quantity.whole_name} {wording.count(quantity.whole(cell))}",
            )
            if (cell := sums.cells.get((agent.model, row, module)))
            else ""
            for module in sums.modules
        ]
        for row in sums.rows
    ]
