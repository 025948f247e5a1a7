"""The log of this package, hushed while something is done once more that was said before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG = logging.getLogger("mergekit_ram")


@contextmanager
def hushed(is_said: Callable[[logging.LogRecord], bool] = lambda record: False) -> Iterator[None]:
    """Within it nothing is logged but the records of which ``is_said`` says so."""

    def filtered(record: logging.LogRecord) -> bool:
        # One of its own for every block, since the log keeps the same one once.
        return is_said(record)

    LOG.addFilter(filtered)
    try:
        yield
    finally:
        LOG.removeFilter(filtered)
