"""Where workers run; here, so that a command knows it without importing what runs them."""

from __future__ import annotations

from enum import Enum


class Engine(str, Enum):
    """Where workers come from."""

    LOCAL = "local"
    RAY = "ray"
