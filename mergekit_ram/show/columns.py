"""What a column of a table is, and the columns that there are, each with what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mergekit_ram.record.schema import Interval
from mergekit_ram.show import wording


@dataclass(frozen=True)
class Column:
    """A column's name, and what it says in words."""

    title: str
    meaning: str


@dataclass(frozen=True)
class Cell:
    """A figure as text; of a sample, with the bounds of its 95 % interval."""

    text: str
    interval: tuple[str, str] | None = None


@dataclass(frozen=True)
class Table:
    """A heading, columns of which the first names, and rows of as many cells."""

    heading: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A column whose cells are one field of a part of a record."""

    field: str
    title: str
    form: wording.Form
    meaning: str
    missing: str = wording.NOTHING
    """What stands where the field is null."""

    def column(self) -> Column:
        """The head of the column."""
        return Column(self.title, self.meaning)

    def cell(self, part: Any) -> Cell:
        """The cell of one part of a record."""
        value = getattr(part, self.field)
        text = self.missing if value is None else wording.spanned(value, self.form)
        bounds = (part.interval or {}).get(self.field) if value is not None else None
        return figure_cell(text, bounds, self.form)


def figure_cell(text: str, bounds: Interval | None, form: wording.Form) -> Cell:
    return Cell(text, None if bounds is None else (form(bounds[0]), form(bounds[1])))


TENSOR = Column("tensor", "by name; biases, norms and other small ones are left out")
LAYER = Column("layer", "by name; what belongs to no layer stands for itself")
OTHER = Column("and", "the other agent")
AGENT = Column("agent", "a model that was trained from the base")
WEIGHT = Figure("weight", "weight", wording.setting, "w, the factor on its task vector")
DENSITY = Figure(
    "density",
    "density",
    wording.share,
    "of all parameters, the share that the agent changed by more than ε",
)
UNIQUE = Figure("unique", "unique", wording.count, "parameters that it alone changed")
SHARED = Figure(
    "shared", "shared", wording.count, "parameters that it and at least one other agent changed"
)
RATIO = Figure(
    "overlap_unique_ratio", "ρ", wording.factor, "shared / unique", missing=wording.INFINITE
)
RESCALE = Figure(
    "rescale", "λ", wording.factor, "1 + r · min(ρ, α), the factor on its unique parameters"
)
CLIPPED = Column("clipped", "whether α limits λ")
KEPT = (
    Figure(
        "retained_mean", "by mean", wording.factor, "kept of its update by the mean of all updates"
    ),
    Figure("retained_ram", "by ram", wording.factor, "kept by ram, where λ is 1"),
    Figure("retained_ram_plus", "by ram_plus", wording.factor, "kept by ram_plus"),
    Figure("retained_directions", "by ram_directions", wording.factor, "kept by ram_directions"),
)
CONFIGURED = Figure(
    "retained", "as configured", wording.factor, "kept by the merge as it is configured"
)
WHOLE_RESCALE = Figure(
    "whole_rescale", "λ for 1", wording.factor, "the λ at which all of its update would be kept"
)
BOTH = Figure("both", "changed by both", wording.count, "parameters that both agents changed")
JACCARD = Figure(
    "jaccard",
    "Jaccard index",
    wording.factor,
    "changed by both / changed by either: 0 is apart, 1 the same",
)
COSINE = Figure("cosine", "cosine", wording.factor, "of the two task vectors where both changed")
CONFLICTS = Figure(
    "sign_conflicts",
    "opposite signs",
    wording.share,
    "of these parameters, the share that one agent raised and the other lowered",
)
EFFECTIVE_RANK = Figure(
    "effective_rank",
    "effective rank",
    wording.share,
    "of the directions of a matrix's input, the share that its update uses",
)
GRAM_COSINE = Figure(
    "gram_cosine",
    "cosine of Grams",
    wording.factor,
    "whether two agents use the same directions of the input: 0 other ones, 1 the same",
)
UNIQUE_SHARE = Figure(
    "unique_share",
    "unique share",
    wording.share,
    "of its changed parameters, the share that it alone changed",
)
CHANGE = Figure(
    "change", "changed", wording.share, "the share of its parameters that some agent changed"
)
NAMES = frozenset(column.title for column in (AGENT, OTHER, TENSOR, LAYER))
"""Columns of names, which stand to the left; all others hold figures."""
