"""Switches: variables of the environment, and names of mergekit that are replaced and restored."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

DISABLE_VARIABLE = "MERGEKIT_RAM_DISABLE"
"""Leaves mergekit as it is."""

QUIET_VARIABLE = "MERGEKIT_RAM_QUIET"
"""Silences the notice that `ram` is replaced."""

STRICT_VARIABLE = "MERGEKIT_RAM_STRICT"
"""Makes warnings about a recipe and its models errors."""

_lock = threading.Lock()
_before: dict[tuple[Any, str], Any] = {}
"""By owner and name: the value of every replaced name, in the order of replacing."""


def is_set(variable: str) -> bool:
    """Whether a switch is on: set to anything but nothing, 0, false, no or off."""
    return os.environ.get(variable, "0").strip().lower() not in ("", "0", "false", "no", "off")


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put ``wrapper(wrapped, instance, args, kwargs)`` around a function, once.

    Args:
        owner: the module, class or object that holds the function.
        name: of the function.
        wrapper: as wrapt calls it.
    """
    import wrapt

    replace(owner, name, lambda function: wrapt.FunctionWrapper(function, wrapper))


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(value)`` in the place of a value, once; threads may ask for it together."""
    with _lock:
        if (owner, name) not in _before:
            _before[owner, name] = value = getattr(owner, name)
            setattr(owner, name, make(value))


def restore() -> None:
    """Give every replaced name its value back, in reverse order."""
    with _lock:
        while _before:
            (owner, name), value = _before.popitem()
            setattr(owner, name, value)
