"""Checks of the folder that a merge is written to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from mergekit_ram.errors import InputError


def check_output(folder: str, size: int, inputs: Iterable[str]) -> None:
    """Check that a folder can be made, written to, hold ``size`` bytes, and is no input.

    Args:
        folder: to write to.
        size: of all merged weights, in bytes.
        inputs: folders that are read from.

    Raises:
        InputError: naming the folder, and what is needed and free.
    """
    target = Path(folder).resolve()
    if any(Path(path).resolve() == target for path in inputs):
        raise InputError(
            f"output folder {folder}: it is also the folder of a model that is merged, and would "
            "be overwritten while it is read. Choose another one."
        )
    parent = target
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(
            f"output folder {folder}: {parent} is not a folder that can be written to. "
            "Choose another one."
        )
    free = shutil.disk_usage(parent).free
    if free < size:
        raise InputError(
            f"output folder {folder}: the merged weights take {size / 1e6:,.1f} MB, and "
            f"{free / 1e6:,.1f} MB are free. Make room, choose another folder, or a narrower "
            "`out_dtype:`."
        )
