"""The models' configurations, read once: mergekit asks for each of them three times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mergekit.common import ModelReference

from mergekit_ram.patches import PATCHING, wrap

_read: ContextVar[dict[object, Any] | None] = ContextVar("read", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Within it, a model's configuration is read from its file when it is first asked for."""
    with PATCHING:
        wrap(ModelReference, "config", _config)
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)


def _config(wrapped: Callable[..., Any], model: ModelReference, args: Any, kwargs: Any) -> Any:
    read = _read.get()
    if read is None:
        return wrapped(*args, **kwargs)
    asked = (model, args, tuple(kwargs.items()))
    if asked not in read:
        read[asked] = wrapped(*args, **kwargs)
    # mergekit makes the output's configuration of the base's.
    return copy.deepcopy(read[asked])
