"""The log of this package, hushed while something is done once more that was said before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG = logging.getLogger("mergekit_ram")


@contextmanager
def hushed(is_said: Callable[[logging.LogRecord], bool] = lambda record: False) -> Iterator[None]:
    """Within it nothing is logged but the records of which ``is_said`` says so."""
    LOG.addFilter(is_said)
    try:
        yield
    finally:
        LOG.removeFilter(is_said)
