"""How far a long pass is: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

import tqdm

from mergekit_ram.text import leave_bars

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0

LINE = (
    "{desc}: {n_fmt} of {total_fmt} {unit}s, {percentage:.0f} %, "
    "{elapsed} elapsed, {remaining} left{postfix}"
)
LINE_OF_BYTES = (
    "{desc}: {n_fmt}B of {total_fmt}B, {percentage:.0f} %, "
    "{elapsed} elapsed, {remaining} left, {rate_fmt}{postfix}"
)


def progress(items: Iterable[Item], title: str, *, unit: str, quiet: bool) -> tqdm.tqdm[Item]:
    """The items, with a bar on the standard error while they are walked through.

    Args:
        items: to walk through.
        title: what is done with them.
        unit: what one of them is called.
        quiet: show nothing.
    """
    return _shown(LINE, iterable=items, desc=title, unit=unit, disable=quiet)


def progress_in_bytes(total: int, title: str, *, quiet: bool) -> tqdm.tqdm[NoReturn]:
    """A bar, or lines of a log, to be told of bytes as they are done.

    Args:
        total: bytes that there are.
        title: what is done with them.
        quiet: show nothing.
    """
    return _shown(LINE_OF_BYTES, total=total, desc=title, unit="B", unit_scale=True, disable=quiet)


def _shown(line: str, **options: Any) -> tqdm.tqdm[Any]:
    if sys.stderr.isatty():
        return tqdm.tqdm(**options)
    return _Lines(
        **options,
        bar_format=line,
        mininterval=SECONDS_BETWEEN_LINES,
        maxinterval=SECONDS_BETWEEN_LINES,
        # Never skip the look at the clock because the items before were fast.
        miniters=1,
        leave=False,
        position=1,
    )


class _Lines(tqdm.tqdm):  # type: ignore[type-arg]  # no generic when it runs
    """A bar for logs: each time it is shown, at its end too, it is a line of its own."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write a line; tqdm asks for an empty one at the end, which is that on the whole."""
        leave_bars()
        print(self, file=self.fp)
