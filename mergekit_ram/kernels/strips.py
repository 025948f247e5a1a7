"""Numbers that the compiled loops and those who call them agree on."""

from __future__ import annotations

STRIP = 1024
"""Elements that a loop takes from every input at once: they stay in the L1 cache."""

LANES = 4
"""Histograms filled in turns: an increment does not wait for the one before it."""

BFLOAT16 = 16
FLOAT16 = 13
"""Shifts; see :mod:`mergekit_ram.kernels.machine`."""
