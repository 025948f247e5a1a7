"""The loops of :mod:`mergekit_ram.kernels.numba_path`; importing this module needs numba.

They do what the torch operations of :mod:`.torch_path` do, in the same order and with every
operation rounded on its own, so the bytes are the same; they need one pass in place of dozens,
and no lock of Python's.

They take and give numbers as bit patterns, because numpy has no bfloat16: an input is unsigned
integers that, shifted left by ``shift`` bits, are float32 (16 for bfloat16, else 0) or float64.
Inputs come as addresses, so that one compilation serves any number of agents.

A loop with one condition and one array to write becomes vector instructions, while loops that
do two things at once do not: hence several short loops over a strip that stays in the L1 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import intrinsic

from mergekit_ram.kernels.strips import LANES, STRIP

Array = npt.NDArray[Any]
T = TypeVar("T")


def _compiled(function: Callable[..., T], **more: Any) -> Callable[..., T]:
    """Machine code, made when it first meets a dtype and kept for the next process."""
    # numpy's error model: a division by zero gives infinity instead of leaving the loop.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **more}
    try:
        compiled: Callable[..., T] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in
        compiled = numba.njit(**options)(function)
    return compiled


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """An integer as the pointer that ``numba.carray`` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@_compiled
def _load_strip(
    addresses: Array, like: Array, size: int, start: int, length: int, shift: int, bits: Array
) -> None:
    """All inputs' bit patterns of one strip, as those of floats."""
    for t in range(len(addresses)):
        stored = numba.carray(_pointer(addresses[t]), (size,), like.dtype)[start : start + length]
        row = bits[t]
        if shift == 16:
            for i in range(length):
                row[i] = np.uint32(stored[i]) << np.uint32(16)
        else:
            for i in range(length):
                row[i] = stored[i]


@_compiled
def _tally(cell: Array, length: int, histogram: Array) -> None:
    """Add one strip's cells to a histogram ``[LANES, cells]``."""
    whole = length - length % LANES
    for i in range(0, whole, LANES):
        histogram[0, cell[i]] += 1
        histogram[1, cell[i + 1]] += 1
        histogram[2, cell[i + 2]] += 1
        histogram[3, cell[i + 3]] += 1
    for i in range(whole, length):
        histogram[0, cell[i]] += 1


@_compiled
def count_block(
    addresses: Array,
    like: Array,
    size: int,
    shift: int,
    values: Array,
    bits: Array,
    epsilon: Any,
    finite: Any,
    pattern_bits: int,
    histograms: Array,
) -> bool:
    """Add one chunk to the histograms of active agents.

    Args:
        addresses: of base and agents, bit patterns ``[size]`` each, contiguous.
        like: an array of their dtype.
        size: elements of each.
        shift: that makes floats of them.
        values: scratch, float ``[1 + agents, STRIP]``.
        bits: the same memory as unsigned integers.
        epsilon: ε, of ``values``' dtype.
        finite: the largest finite number of that dtype.
        pattern_bits: agents per histogram.
        histograms: int64 ``[groups, LANES, cells]``; see :mod:`mergekit_ram.kernels.torch_path`.

    Returns:
        Whether every difference is finite.
    """
    agents = len(addresses) - 1
    cell = np.empty(STRIP, np.int32)
    broken = 0
    for start in range(0, size, STRIP):
        length = min(STRIP, size - start)
        _load_strip(addresses, like, size, start, length, shift, bits)
        base = values[0]
        for group in range(histograms.shape[0]):
            for i in range(length):
                cell[i] = 0
            for t in range(agents):
                value = values[t + 1]
                code = 1 << pattern_bits
                if t // pattern_bits == group:
                    code += 1 << (t % pattern_bits)
                add = np.int32(code)
                for i in range(length):
                    step = abs(value[i] - base[i])
                    cell[i] += add if step > epsilon else np.int32(0)
                    broken += 0 if step <= finite else 1
            _tally(cell, length, histograms[group])
    return broken == 0


@_compiled
def merge_block(
    addresses: Array,
    like: Array,
    size: int,
    shift: int,
    values: Array,
    bits: Array,
    epsilon: Any,
    factor: Array,
    weight: Array,
    divisor: Array,
    is_mean: bool,
    scale: Any,
    largest: Any,
    finite: Any,
    pattern_bits: int,
    histograms: Array,
    out: Array,
) -> bool:
    """Merge one chunk, and count it where there are histograms.

    Args:
        addresses, like, size, shift, values, bits, epsilon, finite, pattern_bits, histograms:
            as in :func:`count_block`.
        factor: s λ_t w_t per agent, of ``values``' dtype, as all that follows.
        weight: w_t per agent.
        divisor: |T|^p by |T|.
        is_mean: p is 1, so that the overlap count itself is the divisor.
        scale: s.
        largest: the largest number that needs no second look.
        out: bit patterns of the merged values, ``[length]``; bfloat16 in 16 bits.

    Returns:
        Whether every difference is finite and every merged value smaller than ``largest``.
    """
    agents = len(addresses) - 1
    overlap = np.empty(STRIP, np.int32)
    cells = np.empty((histograms.shape[0], STRIP), np.int32)
    shared = np.empty(STRIP, values.dtype)
    lone = np.empty(STRIP, values.dtype)
    lone_bits = lone.view(bits.dtype)
    large = 0
    for start in range(0, size, STRIP):
        length = min(STRIP, size - start)
        _load_strip(addresses, like, size, start, length, shift, bits)
        base = values[0]
        for i in range(length):
            overlap[i] = 0
            shared[i] = 0
        for group in range(len(cells)):
            cells[group, :] = 0
        for i in range(length):
            lone[i] = base[i]
        for t in range(agents):
            value, w, f = values[t + 1], weight[t], factor[t]
            for i in range(length):
                step = abs(value[i] - base[i])
                overlap[i] += np.int32(1) if step > epsilon else np.int32(0)
                large += 0 if step <= finite else 1
            if t // pattern_bits < len(cells):
                cell, bit = cells[t // pattern_bits], np.int32(1 << (t % pattern_bits))
                for i in range(length):
                    cell[i] += bit if abs(value[i] - base[i]) > epsilon else np.int32(0)
            for i in range(length):
                delta, before = value[i] - base[i], shared[i]
                added = before + delta * w
                shared[i] = added if abs(delta) > epsilon else before
            if f == 1:
                for i in range(length):
                    own, before = value[i], lone[i]
                    lone[i] = own if abs(own - base[i]) > epsilon else before
            else:
                for i in range(length):
                    delta, before = value[i] - base[i], lone[i]
                    scaled = delta * f + base[i]
                    lone[i] = scaled if abs(delta) > epsilon else before
        for group in range(len(cells)):
            cell = cells[group]
            for i in range(length):
                cell[i] += overlap[i] << pattern_bits
            _tally(cell, length, histograms[group])
        if is_mean:
            for i in range(length):
                shared[i] = shared[i] / values.dtype.type(overlap[i]) * scale + base[i]
        else:
            for i in range(length):
                shared[i] = shared[i] / divisor[overlap[i]] * scale + base[i]
        for i in range(length):
            alone, together = lone[i], shared[i]
            lone[i] = together if overlap[i] >= 2 else alone
        for i in range(length):
            large += 0 if abs(lone[i]) < largest else 1
        merged = out[start : start + length]
        if out.itemsize == 2:
            for i in range(length):
                # To the nearest bfloat16, and to the even one of two equally near.
                pattern = np.uint32(lone_bits[i])
                odd = (pattern >> np.uint32(16)) & np.uint32(1)
                merged[i] = np.uint32(pattern + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        else:
            for i in range(length):
                merged[i] = lone_bits[i]
    return large == 0
