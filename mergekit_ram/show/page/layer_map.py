"""Counts by layer and module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mergekit_ram.record.build import Place
from mergekit_ram.record.schema import OverlapRecord

ORDER = (
    "embed",
    "wte",
    "wpe",
    "input_layernorm",
    "ln_1",
    "q_proj",
    "q_norm",
    "k_proj",
    "k_norm",
    "v_proj",
    "c_attn",
    "query",
    "o_proj",
    "attn",
    "attention.",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "ln_2",
    "router",
    "mlp.gate.",
    "gate_proj",
    "gate_up",
    "up_proj",
    "c_fc",
    "down_proj",
    "mlp",
    "experts",
    "post_feedforward_layernorm",
)
"""Words in the names of modules, in the order of a transformer's layer."""

LAST = ("norm", "ln_f", "lm_head")

UNKNOWN = len(ORDER)

OUTSIDE = "outside layers"
"""The row of tensors without a layer."""


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
        places = {tensor.name: Place.of(tensor.name) for tensor in record.tensors}
        inner = [place for place in places.values() if place.number is not None]
        outer = [place for place in places.values() if place.number is None]
        stacks = tuple(dict.fromkeys(place.stack for place in inner))
        rows = {place: _row(place, several=len(stacks) > 1) for place in (*inner, *outer)}
        ordered = sorted(inner, key=lambda place: (stacks.index(place.stack), place.number))
        return cls(
            rows=tuple(dict.fromkeys(rows[place] for place in (*ordered, *outer))),
            modules=(*_in_model_order(inner), *_in_model_order(outer)),
            cells=_cells(record, places, rows),
        )

    def highest(self, value: Callable[[Cell], float | None]) -> float:
        """The highest value of any cell of any agent; 1 where there is none."""
        return max((found for cell in self.cells.values() if (found := value(cell))), default=1.0)

    def table(self, model: str, value: Callable[[Cell], float | None]) -> list[list[float | None]]:
        """One agent's values, row by row; null where the row lacks the module."""
        return [
            [value(self.cells.get((model, row, module), Cell())) for module in self.modules]
            for row in self.rows
        ]


def _in_model_order(places: Iterable[Place]) -> list[str]:
    """Modules as a token meets them; files list them by the alphabet."""
    modules = list(dict.fromkeys(place.module for place in places))
    return sorted(modules, key=_rank)


def _rank(module: str) -> int:
    """The place of the first word that is known; what is not known stays in the middle."""
    known = next((place for place, word in enumerate(ORDER) if word in module), None)
    if known is not None:
        return known
    last = next((place for place, word in enumerate(LAST) if word in module), None)
    return UNKNOWN if last is None else UNKNOWN + 1 + last


def _row(place: Place, several: bool) -> str:
    if place.number is None:
        return OUTSIDE
    return place.layer if several else str(place.number)


def _cells(
    record: OverlapRecord, places: dict[str, Place], rows: dict[Place, str]
) -> dict[tuple[str, str, str], Cell]:
    cells: dict[tuple[str, str, str], Cell] = {}
    for tensor in record.tensors:
        place = places[tensor.name]
        # An agent that lacks a tensor has no update there: its parameters count all the same.
        for agent in record.agents:
            cell = cells.setdefault((agent.model, rows[place], place.module), Cell())
            cell.numel += tensor.numel
        for counts in tensor.agents:
            cell = cells[counts.model, rows[place], place.module]
            cell.active += counts.active
            cell.unique += counts.unique
    return cells
