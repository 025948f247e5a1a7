"""Figures as a person reads them, one way for each kind, wherever they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable

from mergekit_ram.record.schema import Interval, Setting

NOTHING = "–"
INFINITE = "∞"

LEAST_SHARE = 0.0001
"""Smaller shares than 0.01 % are not told apart, but told from none."""

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Form = Callable[[float], str]


def share(value: float | None) -> str:
    """A share of 0 to 1 as a percentage."""
    if value is None:
        return NOTHING
    if 0 < value < LEAST_SHARE:
        return f"< {100 * LEAST_SHARE:.2f} %"
    return f"{100 * value:.2f} %"


def count(number: float | None) -> str:
    """A number of parameters, its thousands apart."""
    return NOTHING if number is None else f"{number:,.0f}"


def factor(value: float | None) -> str:
    """λ, what is kept of an update, or any other figure around 1: three decimals."""
    if value is None:
        return NOTHING
    # Adding 0 takes the sign from a zero.
    return f"{round(value, 3) + 0.0:,.3f}" if math.isfinite(value) else _endless(value)


def ratio(value: float | None) -> str:
    """ρ, of which null is infinite."""
    return INFINITE if value is None else factor(value)


def setting(value: float | None) -> str:
    """ε, r and α as somebody has written them."""
    return NOTHING if value is None else f"{value:g}"


def _endless(value: float) -> str:
    return INFINITE if value > 0 else f"-{INFINITE}"


def values(value: Setting | None) -> tuple[float, ...]:
    """The different values of a setting."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def listed(value: Setting | None, form: Form = setting) -> str:
    """All values of a setting."""
    return ", ".join(map(form, values(value))) or NOTHING


def spanned(value: Setting | None, form: Form = setting) -> str:
    """A number, or the range of several."""
    found = values(value)
    if len(found) > 1:
        return f"{form(found[0])} to {form(found[-1])}"
    return listed(value, form)


def interval(bounds: Interval | None, form: Form) -> str:
    """A 95 % interval in words; empty where there is none."""
    return "" if bounds is None else f"95 %: {form(bounds[0])} to {form(bounds[1])}"


def degree(others: int) -> str:
    """By how many others a parameter was changed too."""
    if others == 0:
        return "alone"
    number = _WORDS[others] if others < len(_WORDS) else str(others)
    return f"with {number} other" + ("s" if others > 1 else "")
