"""A map of what each agent changed, by layer and module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from mergekit_ram.record.layers import Place
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import charts
from mergekit_ram.show.charts import Panel, Plot

OUTSIDE = "outside layers"
"""The row of tensors without a layer."""

MOST_IN_A_ROW = 4
# Maps in a row whose cells have room for digits.
MOST_WITH_DIGITS = 3

ROW_HEIGHT = 16
NAMES_HEIGHT = 150
TITLE_HEIGHT = 36
NAMES_WIDTH = 130
DIGITS_WIDTH = 27
CELL_WIDTH = 12
DIGITS_SIZE = 9


@dataclass
class Cell:
    """What one agent changed in one module of one layer."""

    numel: int = 0
    active: int = 0
    unique: int = 0

    @property
    def density(self) -> float | None:
        """Share of the module's parameters that the agent changed."""
        return self.active / self.numel if self.numel else None

    @property
    def unique_share(self) -> float | None:
        """Share of these that no other agent changed; null where it changed none."""
        return self.unique / self.active if self.active else None


QUANTITIES: dict[str, Callable[[Cell], float | None]] = {
    "density (active / parameters)": attrgetter("density"),
    "unique share (unique / active)": attrgetter("unique_share"),
}
"""What a map can show."""


@dataclass(frozen=True)
class LayerMap:
    """A cell per agent, row and module; a row is a layer, or what lies outside of all."""

    rows: tuple[str, ...]
    modules: tuple[str, ...]
    cells: dict[tuple[str, str, str], Cell]
    """By agent, row and module."""

    @classmethod
    def of(cls, record: OverlapRecord) -> LayerMap:
        """The sums over the record's tensors."""
        places = [Place.of(tensor.name) for tensor in record.tensors]
        inner = [place for place in places if place.number is not None]
        outer = [place for place in places if place.number is None]
        stacks = list(dict.fromkeys(place.stack for place in inner))
        ordered = sorted(inner, key=lambda place: (stacks.index(place.stack), place.number))
        cells: dict[tuple[str, str, str], Cell] = {}
        for tensor, place in zip(record.tensors, places, strict=True):
            counts = {agent.model: agent for agent in tensor.agents}
            for agent in record.agents:
                key = (agent.model, _row(place, len(stacks)), place.module)
                cell = cells.setdefault(key, Cell())
                # An agent that lacks a tensor has no update there: it counts all the same.
                cell.numel += tensor.numel
                if found := counts.get(agent.model):
                    cell.active += found.active
                    cell.unique += found.unique
        return cls(
            tuple(dict.fromkeys(_row(place, len(stacks)) for place in (*ordered, *outer))),
            tuple(dict.fromkeys(place.module for place in (*inner, *outer))),
            cells,
        )

    def table(self, model: str, value: Callable[[Cell], float | None]) -> list[list[float | None]]:
        """One agent's values, row by row; null where the row lacks the module."""
        return [
            [value(self.cells.get((model, row, module), Cell())) for module in self.modules]
            for row in self.rows
        ]


def _row(place: Place, stacks: int) -> str:
    if place.number is None:
        return OUTSIDE
    return place.layer if stacks > 1 else str(place.number)


def layer_map(record: OverlapRecord) -> Panel:
    """The agents' maps beside each other, of one quantity at a time and on one scale."""
    sums, styles = LayerMap.of(record), charts.styles_of(record)
    models = [agent.model for agent in record.agents]
    # Of one agent alone everything is unique.
    quantities = list(QUANTITIES) if len(models) > 1 else list(QUANTITIES)[:1]
    across = min(len(models), MOST_IN_A_ROW)
    down = -(-len(models) // across)
    traces = [
        _trace(sums, model, title, place, across)
        | {"name": styles[place].label, "visible": title == quantities[0]}
        for title in quantities
        for place, model in enumerate(models)
    ]
    axis = {"type": "category", "showgrid": False}
    layers = {**axis, "autorange": "reversed", "title": {"text": "layer"}}
    plot = charts.plot(
        traces,
        NAMES_HEIGHT + (ROW_HEIGHT * len(sums.rows) + TITLE_HEIGHT) * down,
        grid={"rows": down, "columns": across, "pattern": "coupled", "xgap": 0.02, "ygap": 0.2},
        margin={"t": TITLE_HEIGHT},
        annotations=[_title(style.label, place, across) for place, style in enumerate(styles)],
        **{f"xaxis{place}": {**axis, "tickangle": -60} for place in range(1, across + 1)},
        **{f"yaxis{place}": layers for place in range(1, down + 1)},
    )
    width = DIGITS_WIDTH if across <= MOST_WITH_DIGITS else CELL_WIDTH
    width = NAMES_WIDTH + width * len(sums.modules) * across
    return Panel("layers", plot, min_width=width, choices=quantities)


def _trace(sums: LayerMap, model: str, title: str, place: int, across: int) -> Plot:
    """One agent's map of one quantity, at its place in rows of so many maps."""
    value = QUANTITIES[title]
    values = sums.table(model, value)
    shares = (value(cell) or 0.0 for cell in sums.cells.values())
    x, y = _axes(place, across)
    digits = [["" if share is None else f"{100 * share:.3g}" for share in row] for row in values]
    return charts.heat(
        list(map(charts.plain, sums.modules)),
        list(map(charts.plain, sums.rows)),
        values,
        max(shares, default=0.0) or 1.0,
        text=digits,
        texttemplate="%{text}" if across <= MOST_WITH_DIGITS else "",
        hovertemplate="%{fullData.name}, %{y}, %{x}: %{z:.3~%}<extra></extra>",
        textfont={"size": DIGITS_SIZE},
        xgap=1,
        ygap=1,
        xaxis=x,
        yaxis=y,
        showscale=place == 0,
        colorbar={"tickformat": ".3~%", "thickness": 12, "nticks": 4},
    )


def _axes(place: int, across: int) -> tuple[str, str]:
    """Maps above each other share the names of modules, those beside each other the layers."""
    return f"x{place % across + 1}", f"y{place // across + 1}"


def _title(label: str, place: int, across: int) -> Plot:
    """The agent's name above its map."""
    x, y = _axes(place, across)
    above = {"x": 0.5, "y": 1, "yanchor": "bottom", "showarrow": False}
    return {"text": label, "xref": f"{x} domain", "yref": f"{y} domain", **above}
