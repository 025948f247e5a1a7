"""Options of the commands here and in ``benchmarks``: typed, with a default that is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def count(name: str, default: int, help: str, least: int = 1, most: int | None = None) -> Option:
    """A whole number within bounds."""
    kind = click.IntRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, help=help)


def output(default: str, help: str) -> Option:
    """A folder to write to."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("--output", type=kind, default=Path(default), show_default=True, help=help)
