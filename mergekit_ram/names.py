"""Short names of models: cut where they are alike, whole where they are short enough."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

LABEL_LENGTH = 28
"""Longer names leave no room for figures in a terminal or on a narrow screen."""

CUT = "…"


def labels(names: Sequence[str]) -> tuple[str, ...]:
    """A distinct name of each model, for tables, figures and log.

    Names that all fit stay as they are. Otherwise the folders that they have in common are left
    out, and of what is still too long the part that tells it from the others is kept.

    >>> labels(["/data/experiments/2026/coder/checkpoint-500", "/data/experiments/2026/tool"])
    ('…/coder/checkpoint-500', '…/tool')
    """
    if all(len(name) <= LABEL_LENGTH for name in names) and len(set(names)) == len(names):
        return tuple(names)
    found = _without_common_folders(names)
    shortened = [_around_difference(name, found) for name in found]
    if len(set(shortened)) == len(shortened):
        return tuple(shortened)
    return tuple(f"{number} {label}" for number, label in enumerate(shortened, start=1))


def _without_common_folders(names: Sequence[str]) -> list[str]:
    """The names without the folders at their beginnings and ends that all of them share."""
    parts = [name.rstrip("/").split("/") for name in names]
    shortest = min(map(len, parts))
    alike = _alike(parts)
    start = min(alike, shortest - 1)
    # One name alone, or names of which one is another's folder, keep their last part.
    reversed_parts = [part[start:][::-1] for part in parts]
    end = min(_alike(reversed_parts), shortest - start - 1)
    if len(names) == 1:
        start, end = shortest - 1, 0
    if start == 0 and end == 0:
        return _tails(names, parts)
    return [
        (f"{CUT}/" if start else "")
        + "/".join(part[start : len(part) - end])
        + (f"/{CUT}" if end else "")
        for part in parts
    ]


def _tails(names: Sequence[str], parts: Sequence[list[str]]) -> list[str]:
    """As few last folders as tell all apart: an owner's name, say, does not."""
    for depth in range(1, max(map(len, parts)) + 1):
        found = [
            (f"{CUT}/" if depth < len(part) else "") + "/".join(part[-depth:]) for part in parts
        ]
        if len(set(found)) == len(found):
            return found
    return list(names)


def _around_difference(name: str, all_names: Sequence[str]) -> str:
    """At most ``LABEL_LENGTH`` characters of a name, with what tells it from the others."""
    if len(name) <= LABEL_LENGTH:
        return name
    others = [other for other in all_names if len(other) > LABEL_LENGTH]
    start = _alike(others) if len(others) > 1 else 0
    rest = [other[start:][::-1] for other in others]
    end = len(name) - (_alike(rest) if len(others) > 1 else 0)
    if len(set(others)) == 1 or end - start > LABEL_LENGTH - 2:
        half = (LABEL_LENGTH - 1) // 2
        return f"{name[:half]}{CUT}{name[len(name) - half :]}"
    # The difference stands in the middle of the window, as far as the name reaches.
    width = LABEL_LENGTH - 2
    first = max(0, min((start + end - width) // 2, len(name) - width))
    last = first + width
    return (CUT if first else "") + name[first:last] + (CUT if last < len(name) else "")


def _alike(sequences: Sequence[Sequence[str]]) -> int:
    """How many items the sequences have in common at their beginnings."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
