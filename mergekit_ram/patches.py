"""Names of mergekit that are replaced, and the way back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import wrapt

PATCHING = threading.RLock()
"""Threads may plan their first merges at once; each name is replaced once."""

undo: list[Callable[[], None]] = []
"""What gives every replaced name back, in the order of replacing."""


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put ``wrapper(wrapped, instance, args, kwargs)`` around a function, if it is not yet there.

    Args:
        owner: the module or class that holds the function as its own.
        name: of the function.
        wrapper: as wrapt calls it.
    """
    before = getattr(owner, name)
    if isinstance(vars(owner).get(name), wrapt.FunctionWrapper):
        return
    setattr(owner, name, wrapt.FunctionWrapper(before, wrapper))
    undo.append(lambda: setattr(owner, name, before))


def put(table: dict[str, Any], name: str, value: Any) -> None:
    """Put an entry into a table, in place of the one it may hold."""
    before = table.get(name)

    def restore() -> None:
        if before is None:
            del table[name]
        else:
            table[name] = before

    undo.append(restore)
    table[name] = value
