"""What a command needs beyond what mergekit-ram itself does."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec

import click


def require(packages: Iterable[str], install: str) -> None:
    """Find packages without importing them.

    Raises:
        click.ClickException: with the missing ones and how to ``install`` them.
    """
    # Once imported, some say nothing more of where they came from.
    missing = [name for name in packages if name not in sys.modules and find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{', '.join(missing)} missing; this needs: {install}")
