"""Numbers and names as a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mergekit_ram.record.schema import Intervals, Setting

NOTHING = "–"
INFINITE = "∞"

LABEL_LENGTH = 24
"""Longer names leave no room for a plot on a narrow screen."""

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def count(number: float | None) -> str:
    """A number of parameters."""
    return NOTHING if number is None else f"{number:,.0f}"


def share(value: float | None) -> str:
    """A share of 0 to 1, in per cent."""
    return NOTHING if value is None else f"{100 * value:.4g} %"


def figure(value: float | None) -> str:
    """Any other figure."""
    return NOTHING if value is None else f"{value:.4g}"


def ratio(value: float | None) -> str:
    """ρ, of which null is infinite."""
    return INFINITE if value is None else f"{value:.4g}"


def factor(value: float | None) -> str:
    """λ: what matters of it begins in the second place after the point."""
    return NOTHING if value is None else f"{value:.4f}"


def values(setting: Setting | None) -> tuple[float, ...]:
    """The different values of a setting."""
    if setting is None:
        return ()
    return setting if isinstance(setting, tuple) else (setting,)


def listed(setting: Setting | None, form: Callable[[float], str] = figure) -> str:
    """All values of a setting."""
    return ", ".join(map(form, values(setting))) or NOTHING


def interval(intervals: Intervals | None, field: str, form: Callable[[float], str]) -> str:
    """The 95 % interval of a field in words; empty where the record has none."""
    if not intervals or field not in intervals:
        return ""
    low, high = intervals[field]
    return f"95 %: {form(low)} to {form(high)}"


def degree(others: int) -> str:
    """By how many others a parameter was changed too."""
    if others == 0:
        return "alone"
    number = _WORDS[others] if others < len(_WORDS) else str(others)
    return f"with {number} other" + ("s" if others > 1 else "")


def labels(models: Sequence[str]) -> tuple[str, ...]:
    """A short and distinct label of each model: the end of its name, as far as it takes."""
    parts = [model.rstrip("/").split("/") for model in models]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        found = ["/".join(part[-depth:]) for part in parts]
        if len(set(found)) == len(found):
            break
    else:
        found = list(models)
    shortened = tuple(map(_shortened, found))
    if len(set(shortened)) == len(shortened):
        return shortened
    return tuple(f"{number} {label}" for number, label in enumerate(shortened, start=1))


def _shortened(name: str) -> str:
    if len(name) <= LABEL_LENGTH:
        return name
    half = (LABEL_LENGTH - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
