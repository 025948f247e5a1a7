"""Short names of models: without common folders, and cut in the middle where still too long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

LABEL_LENGTH = 20
"""Longer names leave no room for figures in a terminal or on a narrow screen."""

CUT = "…"


def labels(names: Sequence[str]) -> tuple[str, ...]:
    """A distinct short name of each model, for tables, figures and log.

    >>> labels(["/data/runs/coder/checkpoint-500", "/data/runs/tool"])
    ('coder/checkpoint-500', 'tool')
    """
    parts = [name.rstrip("/").split("/") for name in names]
    folders = zip(*(part[:-1] for part in parts), strict=False)
    alike = sum(1 for _ in takewhile(lambda found: len(set(found)) == 1, folders))
    found = ["/".join(part[alike:]) for part in parts]
    if any(len(name) > LABEL_LENGTH for name in found):
        found = _tails(found, parts)
    shortened = [cut(name, LABEL_LENGTH) for name in found]
    if len(set(shortened)) == len(shortened):
        return tuple(shortened)
    return tuple(f"{number} {label}" for number, label in enumerate(shortened, start=1))


def cut(text: str, length: int) -> str:
    """A text of at most so many characters, without its middle where it is longer."""
    if len(text) <= length:
        return text
    end = (length - len(CUT)) // 2
    return text[: length - len(CUT) - end] + CUT + text[-end:]


def _tails(names: list[str], parts: Sequence[list[str]]) -> list[str]:
    """The fewest last folders that tell all names apart: the owner of a model rarely does."""
    for depth in range(1, max(map(len, parts))):
        found = ["/".join(part[-depth:]) for part in parts]
        if len(set(found)) == len(found):
            return found
    return names
