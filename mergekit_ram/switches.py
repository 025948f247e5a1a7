"""Switches in the environment."""

from __future__ import annotations

import os

DISABLE_VARIABLE = "MERGEKIT_RAM_DISABLE"
"""Leaves mergekit as it is."""

QUIET_VARIABLE = "MERGEKIT_RAM_QUIET"
"""That `ram` is ours is no news to whoever sets it."""


def is_set(variable: str) -> bool:
    """Whether a switch is on: set to anything but nothing, 0, false, no or off."""
    return os.environ.get(variable, "0").strip().lower() not in ("", "0", "false", "no", "off")
