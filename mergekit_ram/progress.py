"""How far a long pass is: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import tqdm

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0

LINE = (
    "{desc}: {n_fmt} of {total_fmt} {unit}s, {percentage:.0f} %, "
    "{elapsed} elapsed, {remaining} left{postfix}"
)


def progress(items: Iterable[Item], title: str, *, unit: str, quiet: bool) -> tqdm.tqdm[Item]:
    """The items, with a bar on the standard error while they are walked through.

    Args:
        items: to walk through.
        title: what is done with them.
        unit: what one of them is called.
        quiet: show nothing.
    """
    if sys.stderr.isatty():
        return tqdm.tqdm(items, desc=title, unit=unit, disable=quiet)
    return _Lines(
        items,
        desc=title,
        unit=unit,
        disable=quiet,
        bar_format=LINE,
        mininterval=SECONDS_BETWEEN_LINES,
        maxinterval=SECONDS_BETWEEN_LINES,
        # Never skip the look at the clock because the items before were fast.
        miniters=1,
    )


class _Lines(tqdm.tqdm):  # type: ignore[type-arg]  # no generic when it runs
    """A bar for logs: each time it is shown it is a line of its own."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write a line; what a terminal would be moved about for is left out."""
        if msg != "":
            print(str(self) if msg is None else msg, file=self.fp)

    def close(self) -> None:
        """End with a line on the whole."""
        if not self.disable:
            self.display()
        self.leave = False
        super().close()

    def moveto(self, n: int) -> None:
        """A log has no cursor."""

    @staticmethod
    def status_printer(file: Any) -> Any:
        """What would print over the last line; never asked here."""
        return lambda text: None
