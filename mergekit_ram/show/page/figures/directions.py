"""Which directions of a layer's input the agents use, and whether they are the same."""

from __future__ import annotations

import html

import plotly.graph_objects as go

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import columns
from mergekit_ram.show.page.figures import look
from mergekit_ram.show.page.figures.pairs import (
    CELL_HEIGHT,
    CELL_WIDTH,
    NUMBERS_HEIGHT,
    NUMBERS_WIDTH,
)


def panels(record: OverlapRecord) -> tuple[look.Panel, ...]:
    """A cell per pair, twice, and on the diagonal each agent's effective rank."""
    pairs = [pair for pair in record.pairwise or () if pair.gram_cosine is not None]
    if not pairs:
        return ()
    drawn = look.agents(record)
    place = {agent.model: number for number, agent in enumerate(drawn)}
    size = len(drawn)
    values: list[list[float | None]] = [[None] * size for _ in range(size)]
    texts = [[""] * size for _ in range(size)]
    hover = [[""] * size for _ in range(size)]
    for agent in record.agents:
        own = place[agent.model]
        rank = columns.EFFECTIVE_RANK.cell(agent).text
        texts[own][own] = f"rank<br>{rank}"
        hover[own][own] = look.lines(look.plain(agent.model), f"effective rank {rank}")
    for pair in pairs:
        cosine = columns.GRAM_COSINE.cell(pair).text
        row, column = place[pair.first], place[pair.second]
        for one, other in ((row, column), (column, row)):
            values[one][other] = pair.gram_cosine
            texts[one][other] = cosine
            hover[one][other] = look.lines(
                f"{look.plain(pair.first)} and {look.plain(pair.second)}",
                f"cosine of Grams {cosine}",
            )
    names = [str(number) for number in range(1, size + 1)]
    numbered = ", ".join(
        f"{number} = {html.unescape(agent.label)}" for number, agent in enumerate(drawn, start=1)
    )
    trace = go.Heatmap(
        x=names,
        y=names,
        z=values,
        zmin=0,
        zmax=1,
        colorscale=look.COLOUR_SCALE,
        text=texts,
        texttemplate="%{text}",
        hovertext=hover,
        hoverinfo="text",
        hoverongaps=False,
        xgap=2,
        ygap=2,
        # Every cell says its number.
        showscale=False,
        textfont={"color": look.INK, "size": 11},
    )
    return (
        look.Panel(
            name="directions",
            title="Directions of the input",
            caption=f"{numbered}. In each cell the cosine of two agents' Gram matrices: 0 where "
            "their updates use other directions of a layer's input, which ram_directions then "
            "keeps whole, 1 where the same. On the diagonal the share of all directions that an "
            "agent uses.",
            plot=look.plot(
                [trace],
                NUMBERS_HEIGHT + CELL_HEIGHT * size,
                xaxis={"type": "category", "showgrid": False},
                yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
            ),
            min_width=NUMBERS_WIDTH + CELL_WIDTH * size,
        ),
    )
