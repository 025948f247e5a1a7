"""How the agents' updates meet, two by two."""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from mergekit_ram.record.schema import OverlapRecord, PairRecord
from mergekit_ram.show import columns, wording
from mergekit_ram.show.page.figures import look

CELL_WIDTH = 82
CELL_HEIGHT = 44
NUMBERS_WIDTH = 40
NUMBERS_HEIGHT = 60


def matrix(record: OverlapRecord, pairs: Sequence[PairRecord]) -> look.Panel:
    """A cell per pair, twice, so that every row is complete."""
    drawn = look.agents(record)
    place = {agent.model: number for number, agent in enumerate(drawn)}
    size = len(drawn)
    values: list[list[float | None]] = [[None] * size for _ in range(size)]
    texts, hover = _empty(size), _empty(size)
    for pair in pairs:
        row, column = place[pair.first], place[pair.second]
        for one, other in ((row, column), (column, row)):
            values[one][other] = pair.jaccard
            texts[one][other] = f"{wording.factor(pair.jaccard)}<br>{wording.count(pair.both)}"
            hover[one][other] = _in_words(pair)
    names = [str(number) for number in range(1, size + 1)]
    numbered = ", ".join(
        f"{number} = {html.unescape(agent.label)}" for number, agent in enumerate(drawn, start=1)
    )
    trace = go.Heatmap(
        x=names,
        y=names,
        z=values,
        zmin=0,
        zmax=max((pair.jaccard for pair in pairs if pair.jaccard), default=1.0),
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
    return look.Panel(
        name="pairs",
        title="Overlap of each pair",
        caption=f"{numbered}. In each cell the Jaccard index (parameters that both changed, "
        "divided by those that either changed: 0 is apart, 1 the same) and their number. "
        "Point at a cell, or see the table below, for the cosine of the two task vectors and the "
        "share of opposite signs there: parameters that one agent raised and the other lowered.",
        plot=look.plot(
            [trace],
            NUMBERS_HEIGHT + CELL_HEIGHT * size,
            xaxis={"type": "category", "showgrid": False},
            yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
        ),
        min_width=NUMBERS_WIDTH + CELL_WIDTH * size,
    )


def _empty(size: int) -> list[list[str]]:
    return [[""] * size for _ in range(size)]


def _in_words(pair: PairRecord) -> str:
    return look.lines(
        f"{look.plain(pair.first)} and {look.plain(pair.second)}",
        *(
            f"{figure.title} {figure.cell(pair).text} "
            f"{look.interval(pair, figure.field, figure.form)}".rstrip()
            for figure in (columns.BOTH, columns.JACCARD, columns.COSINE, columns.CONFLICTS)
        ),
    )
