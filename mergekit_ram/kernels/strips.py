"""Numbers that the compiled loops and those who call them agree on."""

from __future__ import annotations

STRIP = 1024
"""Elements that a loop takes from every input at once: they stay in the L1 cache."""

STRIP_BYTES = 2048
"""The same for merging and counting, of an input as it is stored. A float32 takes twice the room
in that cache, ahead of the loops too, and no more time than a bfloat16 for all else: strips of
512 take three quarters of the time of those of 1,024. Sums of floats keep theirs, since their
rounding is that of their order."""

LANES = 4
"""Histograms filled in turns: an increment does not wait for the one before it."""

BFLOAT16 = 16
FLOAT16 = 13
"""Shifts; see :mod:`mergekit_ram.kernels.machine`."""
