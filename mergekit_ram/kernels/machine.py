"""What the compiled loops are made of; importing this module needs numba.

Numbers come and go as bit patterns, because numpy has no bfloat16: an input is unsigned integers,
and a *shift* says how they become floats. 0: they are float32 or float64. 16: bfloat16, the upper
half of a float32. 13: float16, whose fraction lies 13 bits further up in a float32.

numba keeps machine code per file and makes it anew when that file changes: the loops that use
these functions do not see a change here before theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mergekit_ram.kernels.strips import BFLOAT16, FLOAT16, LANES

Array = npt.NDArray[Any]
T = TypeVar("T")

LARGEST_HALF = 0x477FF000
"""The float32 from which on a number is infinite in float16: 65520."""

LINE = 64
"""Bytes that memory hands over at once."""

QUAD = 4
"""Parameters whose activity makes one number of :func:`tally_quads`."""

QUAD_BITS = 3
"""Agents up to which it pays."""


def compiled(function: Callable[..., T], **more: Any) -> Callable[..., T]:
    """Machine code, made when it first meets a dtype and kept for the next process."""
    # numpy's error model: a division by zero gives infinity instead of leaving the loop.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **more}
    try:
        made: Callable[..., T] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in
        made = numba.njit(**options)(function)
    return made


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """An integer as the pointer that ``numba.carray`` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@intrinsic
def _prefetch(context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, which need not be one that may be read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To be read, soon to be used again, data.
        builder.call(function, [builder.inttoptr(arguments[0], pointer), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


@intrinsic
def select(context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """``yes if condition else no`` without a branch, so that a loop of several stays a vector's."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return yes(types.boolean, yes, yes), generate


@intrinsic
def pattern(context: Any, value: Any) -> Any:
    """The bits of a float as an unsigned integer."""
    integer = types.uint64 if value == types.float64 else types.uint32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(integer))

    return integer(value), generate


@intrinsic
def number(context: Any, bits: Any) -> Any:
    """32 bits as the float that they are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), generate


@compiled
def _from_half(half: Any) -> Any:
    """The float32 pattern of a float16 one; exact."""
    size = np.uint32(half & np.uint32(0x7FFF))
    sign = np.uint32((half & np.uint32(0x8000)) << np.uint32(16))
    normal = np.uint32((size << np.uint32(13)) + np.uint32(112 << 23))
    # Below 2⁻¹⁴ a float16 is a whole number of 2⁻²⁴.
    bits = select(size < 0x400, pattern(np.float32(size) * np.float32(2.0**-24)), normal)
    not_finite = np.uint32(normal + np.uint32(112 << 23))
    return np.uint32(select(size >= 0x7C00, not_finite, bits) | sign)


@compiled
def _to_half(bits: Any) -> Any:
    """The float16 pattern of a float32 one: to the nearest, and to the even of two as near."""
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    odd = np.uint32((size >> np.uint32(13)) & np.uint32(1))
    rebased = np.uint32(size - np.uint32(112 << 23))
    normal = np.uint32((rebased + np.uint32(0xFFF) + odd) >> np.uint32(13))
    # In [½, 1) floats are 2⁻²⁴ apart, as the smallest of float16 are: the sum rounds to these.
    small = np.uint32(pattern(number(size) + np.float32(0.5)) - np.uint32(0x3F000000))
    half = select(size < np.uint32(113 << 23), small, normal)
    return np.uint32(select(size >= np.uint32(LARGEST_HALF), np.uint32(0x7C00), half) | sign)


@compiled
def _to_bfloat16(bits: Any) -> Any:
    """The bfloat16 pattern of a float32 one: to the nearest, and to the even of two as near."""
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@compiled
def load_strip(
    addresses: Array,
    like: Array,
    size: int,
    start: int,
    length: int,
    shift: int,
    bits: Array,
    copies: bool,
) -> None:
    """All inputs' bit patterns of one strip, as those of floats.

    Without ``copies``, what is stored as floats is left where it is: see :func:`row_of`.
    """
    width, ahead = like.itemsize, np.uint64(start + len(bits[0]))
    # A function that did nothing else would be left out as one without an effect.
    for t in range(len(addresses)):
        after = addresses[t] + ahead * np.uint64(width)
        for i in range(0, len(bits[0]) * width, LINE):
            _prefetch(np.uint64(after + np.uint64(i)))
    for t in range(len(addresses)):
        stored = numba.carray(_pointer(addresses[t]), (size,), like.dtype)[start : start + length]
        row = bits[t]
        if shift == BFLOAT16:
            for i in range(length):
                row[i] = np.uint32(stored[i]) << np.uint32(16)
        elif shift == FLOAT16:
            for i in range(length):
                row[i] = _from_half(np.uint32(stored[i]))
        elif copies:
            for i in range(length):
                row[i] = stored[i]


@compiled
def row_of(
    addresses: Array, t: int, size: int, start: int, length: int, shift: int, values: Array
) -> Array:
    """One input's floats of a strip, to be read: those that were loaded, or the stored ones."""
    row: Array = values[t][:length]
    if shift == 0:
        row = numba.carray(_pointer(addresses[t]), (size,), values.dtype)[start : start + length]
    return row


@compiled
def store_strip(bits: Array, length: int, shift: int, out: Array) -> None:
    """One strip's floats, rounded to what ``shift`` says."""
    if shift == BFLOAT16:
        for i in range(length):
            out[i] = _to_bfloat16(np.uint32(bits[i]))
    elif shift == FLOAT16:
        for i in range(length):
            out[i] = _to_half(np.uint32(bits[i]))
    else:
        for i in range(length):
            out[i] = bits[i]


@compiled
def tally(cell: Array, length: int, histogram: Array) -> None:
    """Add one strip's cells to a histogram ``[LANES, cells]``."""
    whole = length - length % LANES
    for i in range(0, whole, LANES):
        histogram[0, cell[i]] += 1
        histogram[1, cell[i + 1]] += 1
        histogram[2, cell[i + 2]] += 1
        histogram[3, cell[i + 3]] += 1
    for i in range(whole, length):
        histogram[0, cell[i]] += 1


@compiled
def tally_quads(
    cell: Array, length: int, bits: int, joined: Array, quads: Array, histogram: Array
) -> None:
    """The same by four parameters at once, to be added up by :func:`add_quads`.

    Args:
        cell: int32; its lowest ``bits`` say which agents are active.
        length: of the strip.
        bits: agents, at most QUAD_BITS.
        joined: scratch, int32, a fourth of ``cell``.
        quads: int32 ``[2, 1 << QUAD * bits]``.
        histogram: for the last few.
    """
    mask = np.int32((1 << bits) - 1)
    count = length // QUAD
    for j in range(count):
        i = QUAD * j
        low = (cell[i] & mask) | ((cell[i + 1] & mask) << bits)
        high = (cell[i + 2] & mask) | ((cell[i + 3] & mask) << bits)
        joined[j] = low | (high << (2 * bits))
    for j in range(0, count - 1, 2):
        quads[0, joined[j]] += 1
        quads[1, joined[j + 1]] += 1
    if count % 2:
        quads[0, joined[count - 1]] += 1
    for i in range(QUAD * count, length):
        histogram[0, cell[i]] += 1


@compiled
def add_quads(quads: Array, bits: int, histogram: Array) -> None:
    """Add what :func:`tally_quads` counted to a histogram ``[LANES, cells]``."""
    for joined in range(quads.shape[1]):
        times = np.int64(quads[0, joined]) + np.int64(quads[1, joined])
        if times > 0:
            for place in range(QUAD):
                active = (joined >> (place * bits)) & ((1 << bits) - 1)
                overlap = 0
                for t in range(bits):
                    overlap += (active >> t) & 1
                histogram[0, (overlap << bits) | active] += times
