"""The columns of all tables: titles, meanings, and the form of their figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from mergekit_ram.record.layers import different
from mergekit_ram.record.schema import Interval, OverlapRecord, Setting

NOTHING = "–"
INFINITE = "∞"

LEAST_SHARE = 0.0001
"""Smaller shares are shown as less than this."""

Form = Callable[[float], str]


def share(value: float) -> str:
    """A share of 0 to 1 as a percentage."""
    if 0 < value < LEAST_SHARE:
        return f"< {100 * LEAST_SHARE:.2f} %"
    return f"{100 * value:.2f} %"


def count(number: float) -> str:
    """A number of parameters, with separated thousands."""
    return f"{number:,.0f}"


def factor(value: float) -> str:
    """λ, the kept part of an update, or another figure around 1, with three decimals."""
    if math.isinf(value):
        return INFINITE if value > 0 else f"-{INFINITE}"
    # Adding 0 takes the sign from a zero.
    return f"{round(value, 3) + 0.0:,.3f}"


def setting(value: float) -> str:
    """ε, r or α as a person writes it."""
    return f"{value:g}"


def spanned(value: Setting | None, form: Form = setting) -> str:
    """A figure, or the range of several."""
    found = different(value)
    return " to ".join(map(form, found if len(found) < 2 else (found[0], found[-1])))


def degree(others: int) -> str:
    """By how many other agents a parameter was changed too."""
    return f"with {others} other{'s' if others > 1 else ''}" if others else "alone"


def settings_of(record: OverlapRecord) -> dict[str, str]:
    """The merge's parameters that the method has, by the symbols that people write."""
    settings = record.settings
    found = {
        "ε": settings.epsilon,
        "scale": settings.scale,
        "overlap_power": settings.overlap_power,
        "r": settings.r,
        "α": settings.alpha,
        "ridge": settings.ridge,
    }
    return {name: spanned(value) for name, value in found.items() if value is not None}


Bounds = Interval | tuple[()] | None
"""A 95 % interval; empty where a sample does not bound the figure, null where all was counted."""

UNKNOWN = "too few seen"


class Cell(NamedTuple):
    """A figure as text; of a sample, with the bounds of its 95 % interval or :data:`UNKNOWN`."""

    text: str
    interval: tuple[str, ...] | None = None


def bounds_of(part: Any, field: str) -> Bounds:
    """The bounds of a field of a part of a record."""
    intervals = part.interval or {}
    return (intervals[field] or ()) if field in intervals else None


def no_bounds(part: Any) -> None:
    """Of what is no estimate."""


@dataclass(frozen=True)
class Column:
    """What a column shows of a part of a record: an agent, a pair, a tensor."""

    title: str
    meaning: str
    value: Callable[[Any], Any]
    form: Callable[[Any], str] = str
    bounds: Callable[[Any], Bounds] = no_bounds
    missing: str = NOTHING
    """Stands where the value is null."""

    is_name: bool = False
    """Names tell what a row is about, and stand to the left; figures stand to the right."""

    def cell(self, part: Any) -> Cell:
        """The figure as text, or the range of several."""
        value, bounds = self.value(part), self.bounds(part)
        if value is None:
            return Cell(self.missing)
        interval = None if bounds is None else tuple(map(self.form, bounds)) or (UNKNOWN,)
        return Cell(spanned(value, self.form), interval)

    def single(self, part: Any) -> float | None:
        """The figure, of which several by tensor have no place in a chart."""
        value: Setting | None = self.value(part)
        return None if isinstance(value, tuple) else value

    def words(self, part: Any) -> str:
        """Title, figure and interval of a part."""
        text, interval = self.cell(part)
        return f"{self.title} {text}" + (f", 95 %: {' to '.join(interval)}" if interval else "")

    def of(self, held: Callable[[Any], Any]) -> Column:
        """The same column for rows that only hold such a part."""
        return replace(
            self,
            value=lambda row: self.value(held(row)),
            bounds=lambda row: self.bounds(held(row)),
        )


def figure(field: str, title: str, form: Form, meaning: str, missing: str = NOTHING) -> Column:
    """A column of one field of a part of a record, and of its interval."""
    return Column(title, meaning, attrgetter(field), form, partial(bounds_of, field=field), missing)


def name(title: str, meaning: str, value: Callable[[Any], str]) -> Column:
    """A column of names."""
    return Column(title, meaning, value, is_name=True)


AGENT = "a model that was trained from the base"
TENSOR = name("tensor", "by name; biases, norms and small tensors are left out", attrgetter("name"))
LAYER = name("layer", "by name; a tensor outside of all layers is its own", attrgetter("name"))
THRESHOLD = Column("ε", "the threshold of activity", attrgetter("epsilon"), setting, is_name=True)
WEIGHT = figure("weight", "weight", setting, "w, the factor on its task vector")
DENSITY = figure("density", "density", share, "share of the parameters, changed by more than ε")
UNIQUE = figure("unique", "unique", count, "parameters that it alone changed")
SHARED = figure("shared", "shared", count, "parameters that it and another agent changed")
RATIO = figure("overlap_unique_ratio", "ρ", factor, "shared / unique", missing=INFINITE)
RESCALE = figure("rescale", "λ", factor, "1 + r · min(ρ, α), the factor on its unique parameters")
CLIPPED = Column("clipped", "whether α limits λ", lambda a: "yes" if a.clipped else "no")
CONFIGURED = figure("retained", "as configured", factor, "kept by the merge as it is configured")
KEPT = (
    figure("retained_mean", "by mean", factor, "kept by the mean of all updates"),
    figure("retained_ram", "by ram", factor, "kept by ram, where λ is 1"),
    figure("retained_ram_plus", "by ram_plus", factor, "kept by ram_plus"),
    figure("retained_directions", "by ram_directions", factor, "kept by ram_directions"),
    CONFIGURED,
)
WHOLE_RESCALE = figure("whole_rescale", "λ for 1", factor, "the λ that would keep its whole update")
RESCALE_EFFECT = figure(
    "rescale_effect",
    "unique values it changes",
    share,
    "share of its unique parameters whose stored value λ changes",
)
PAIRS = (
    figure("both", "both", count, "parameters that both agents changed"),
    figure("jaccard", "Jaccard", factor, "index: changed by both / changed by either, 0 to 1"),
    figure("cosine", "cosine", factor, "of the two task vectors where both changed"),
    figure(
        "sign_conflicts",
        "opposite signs",
        share,
        "share of these parameters that one agent raised and the other lowered",
    ),
)
RANK = figure(
    "effective_rank", "rank", share, "effective rank: share of input directions that it uses"
)
GRAM_COSINE = figure(
    "gram_cosine",
    "Gram cosine",
    factor,
    "cosine of the Gram matrices: 0 where they use other input directions, 1 the same",
)
UNIQUE_SHARE = figure("unique_share", "unique share", share, "unique / active")
AT_THRESHOLDS = (DENSITY, UNIQUE_SHARE, RATIO, RESCALE)
CHANGE = figure("change", "changed", share, "share of its parameters that some agent changed")
