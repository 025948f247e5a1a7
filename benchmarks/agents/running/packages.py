"""What a command needs beyond what mergekit-ram itself does."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

import click


def require(packages: Iterable[str], install: str) -> None:
    """Find packages without importing them.

    Raises:
        click.ClickException: with the missing ones and how to ``install`` them.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise click.ClickException(f"{', '.join(missing)} missing; this needs: {install}")
