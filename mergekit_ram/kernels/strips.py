"""What :mod:`.loops` does with one strip: stored numbers, marks of activity, counts.

A loop that selects instead of branching and writes no more than it must becomes vector
instructions. Importing this needs numba, which keeps machine code by the time of the file that
calls a function: after a change here delete ``__pycache__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import intrinsic, overload

from mergekit_ram.kernels.recipe import Numbers

Array = npt.NDArray[Any]
T = TypeVar("T")

STRIP = 1024
"""Elements that are computed with at once; see :func:`both_set`."""


def compiled(function: Callable[..., T], **more: Any) -> Callable[..., T]:
    """Machine code, made when a dtype is first met and kept for the next process."""
    # numpy's error model: a division by zero gives infinity instead of leaving the loop.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **more}
    try:
        made: Callable[..., T] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in
        made = numba.njit(**options)(function)
    return made


def summing(function: Callable[..., T]) -> Callable[..., T]:
    """The same for a sum whose terms may be taken in another order, as vector instructions do."""
    return compiled(function, fastmath={"reassoc"})


@intrinsic
def select(context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """``yes if condition else no`` without a branch."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return yes(types.boolean, yes, yes), generate


def number(stored: Any) -> Any:
    """The float that is stored; 16 bits are bfloat16, which is the upper half of a float32."""
    raise NotImplementedError


@overload(number, strict=False)
def _number(stored: Any) -> Any:
    if isinstance(stored, types.Integer):
        return lambda stored: np.uint32(np.uint32(stored) << np.uint32(16)).view(np.float32)
    return lambda stored: stored


def narrowed(value: Any, target: Any) -> Any:
    """A float as ``target`` stores it: the nearest, and the even one of two as near."""
    raise NotImplementedError


@overload(narrowed, strict=False)
def _narrowed(value: Any, target: Any) -> Any:
    def bfloat16(value: Any, target: Any) -> Any:
        bits = np.float32(value).view(np.uint32)
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return np.uint16(np.uint32(bits + half) >> np.uint32(16))

    return bfloat16 if isinstance(target.dtype, types.Integer) else lambda value, target: value


@summing
def plus(total: float, value: float) -> float:
    """A sum that shows whether all its terms are finite, whatever their order."""
    return total + value


@compiled
def read(stored: Array, values: Array) -> None:
    for i in range(len(values)):
        values[i] = number(stored[i])


@compiled
def mark(stored: Array, base: Array, epsilon: float, active: Array) -> Any:
    """1 where |τ| > ε, else 0; returns Σ τ."""
    idle, moved = base.dtype.type(epsilon), base.dtype.type(0)
    for i in range(len(base)):
        delta = number(stored[i]) - base[i]
        active[i] = select(abs(delta) <= idle, np.uint8(0), np.uint8(1))
        moved = plus(moved, delta)
    return moved


@compiled
def add_up(active: Array, overlap: Array) -> None:
    """|T_i|"""
    overlap[:] = 0
    for t in range(len(active)):
        own = active[t]
        for i in range(len(overlap)):
            overlap[i] += own[i]


@compiled
def are_equal(overlap: Array, number: int, equal: Array) -> bool:
    """1 where it is that number, else 0; returns whether there is any."""
    wanted, found = np.uint8(number), np.uint8(0)
    for i in range(len(overlap)):
        equal[i] = np.uint8(overlap[i] == wanted)
        found = np.uint8(found | equal[i])
    return bool(found)


@compiled
def both_set(a: Array, b: Array) -> int:
    """How many bytes are 1 in both; eight go into a number, whose sums fit a byte each."""
    total, even = np.uint64(0), np.uint64(0x00FF00FF00FF00FF)
    for i in range(len(a)):
        total += a[i] & b[i]
    pairs = (total & even) + ((total >> np.uint64(8)) & even)
    return int((pairs * np.uint64(0x0001000100010001)) >> np.uint64(48))


@compiled
def count(active: Array, overlap: Array, degree: Array) -> None:
    """Add a strip to ``degree[t, k]``, the parameters of agent t that k others changed too."""
    equal = np.empty(len(overlap), np.uint8)
    own, wanted = active.view(np.uint64), equal.view(np.uint64)
    for k in range(len(degree)):
        if are_equal(overlap, k + 1, equal):
            for t in range(len(degree)):
                degree[t, k] += both_set(own[t], wanted)


@compiled
def share(total: Array, overlap: Array, numbers: Numbers) -> None:
    """s Σ w_t τ_t / |T_i|^p where there are two, else 0, in place."""
    kind, divisor = total.dtype.type, numbers.divisor
    scale, nothing = kind(numbers.scale), kind(0)
    is_mean = np.all(divisor[1:] == np.arange(1, len(divisor)))
    for i in range(len(total)):
        by = kind(overlap[i]) if is_mean else divisor[overlap[i]]  # converting is faster
        total[i] = select(overlap[i] >= np.uint8(2), total[i] / by * scale, nothing)
