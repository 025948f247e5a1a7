"""What a plan has to say about its models: warned of at once, and kept for the record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LOG = logging.getLogger("mergekit_ram")

NAMED = 3
"""Names that a message lists."""


@dataclass(frozen=True)
class Note:
    """Something that a user should know and that stops no merge.

    Attributes:
        code: for programs; stays the same where the words change.
        text: one line.
    """

    code: str
    text: str


def tell(notes: Iterable[Note]) -> None:
    """Warn of every note."""
    for note in notes:
        LOG.warning("%s", note.text)


def some(names: Sequence[str], limit: int = NAMED) -> str:
    """The first names of a list, and how many there are besides.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
