"""Where in the model the agents changed something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import wording
from mergekit_ram.show.page.figures import look
from mergekit_ram.show.page.layer_map import Cell, LayerMap

ROOM_FOR_ROWS = 1200
LARGEST_ROW = 26
SMALLEST_ROW = 10
NAMES_HEIGHT = 210
NAMES_WIDTH = 130
CELL_WIDTH = 38


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
    """A map per agent and quantity, of which one is seen."""
    sums = LayerMap.of(record)
    drawn = look.agents(record)
    traces = [_map(sums, agent, quantity) for agent in drawn for quantity in QUANTITIES]
    for trace in traces[1:]:
        trace.visible = False
    row_height = min(LARGEST_ROW, max(SMALLEST_ROW, ROOM_FOR_ROWS // max(len(sums.rows), 1)))
    return look.Panel(
        name="layers",
        title="Layers and modules",
        caption="One row per layer, one column per module; experts of a layer are summed, and "
        "what belongs to no layer has the last row. The numbers are per cent; the colours of a map "
        "go from 0 to its own highest value. An empty cell: no such module there, or for the "
        "unique share no active parameter.",
        plot=look.plot(
            traces,
            NAMES_HEIGHT + row_height * len(sums.rows),
            xaxis={"type": "category", "tickangle": -60, "showgrid": False},
            yaxis={
                "type": "category",
                "autorange": "reversed",
                "showgrid": False,
                "title": {"text": "layer"},
            },
        ),
        min_width=NAMES_WIDTH + CELL_WIDTH * len(sums.modules),
        choices=(
            look.Choice("agent", tuple(agent.model for agent in record.agents)),
            look.Choice("quantity", tuple(quantity.title for quantity in QUANTITIES)),
        ),
    )


def _map(sums: LayerMap, agent: look.Agent, quantity: Quantity) -> go.Heatmap:
    values = sums.table(agent.model, quantity.value)
    return go.Heatmap(
        name=agent.label,
        x=[look.plain(module) for module in sums.modules],
        y=[look.plain(row) for row in sums.rows],
        z=values,
        zmin=0,
        zmax=max((value for row in values for value in row if value), default=1.0),
        colorscale=look.COLOUR_SCALE,
        text=[["" if value is None else f"{100 * value:.3g}" for value in row] for row in values],
        texttemplate="%{text}",
        hovertext=_in_words(sums, agent, quantity),
        hoverinfo="text",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": "share"}, "tickformat": ".3~%", "thickness": 12},
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
