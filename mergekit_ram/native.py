"""The fused CPU loops of counting and merging, compiled by numba where that is installed.

The functions below are plain Python over numpy arrays, and :func:`compiled` turns them into
machine code. They do what the torch operations of :mod:`mergekit_ram.torch_kernels` do, in the
same order and with every operation rounded on its own, so the bytes are the same; they need
one pass over a chunk in place of dozens.

A loop with one condition and one array to write becomes vector instructions, while loops that
do two things at once do not: hence several short loops over a strip that stays in the L1 cache.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mergekit_ram.chunks import Chunk
from mergekit_ram.recipe import Recipe

Floats = npt.NDArray[Any]

DISABLE_VARIABLE = "MERGEKIT_RAM_NATIVE"
"""Set to 0 in the environment, it leaves the arithmetic to torch."""

STRIP = 2048
LANES = 4
"""Histograms filled in turns: an increment does not wait for the one before it."""

_FINITE: dict[Any, Any] = {kind: np.finfo(kind).max for kind in (np.float32, np.float64)}


class Compiled(NamedTuple):
    """The compiled loops; see :func:`count_block` and :func:`merge_block`."""

    count: Callable[..., bool]
    merge: Callable[..., bool]


def available() -> bool:
    """Whether numba is installed, works, and is not switched off."""
    return os.environ.get(DISABLE_VARIABLE) != "0" and compiled() is not None


@functools.lru_cache(maxsize=1)
def compiled() -> Compiled | None:
    """The loops as machine code, made when they first meet a dtype; None without numba."""
    try:
        numba = importlib.import_module("numba")
    except ImportError:  # absent, or not made for this numpy
        return None

    def compile_one(function: Callable[..., bool]) -> Callable[..., bool]:
        # numpy's error model: a division by zero gives infinity instead of leaving the loop.
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder to keep machine code in
            return numba.njit(**options)(function)  # type: ignore[no-any-return]

    return Compiled(compile_one(count_block), compile_one(merge_block))


def counter(epsilon: float, bits: int, histograms: torch.Tensor) -> Callable[[Chunk], None]:
    """As :func:`mergekit_ram.torch_kernels.counter`, with all lanes in use."""
    loops, cells = _loops(), histograms.numpy()

    def count_chunk(chunk: Chunk) -> None:
        block = chunk.load_all().numpy()
        number = block.dtype.type
        if not loops.count(block, number(epsilon), _FINITE[number], bits, cells):
            chunk.raise_if_not_finite()

    return count_chunk


def merger(
    recipe: Recipe, largest: float, dtype: torch.dtype
) -> Callable[[Chunk], tuple[torch.Tensor, bool]]:
    """As :func:`mergekit_ram.torch_kernels.merger`."""
    loops = _loops()
    number = np.float64 if dtype == torch.float64 else np.float32
    arguments = (
        number(recipe.epsilon),
        np.array(recipe.unique_factor, number),
        np.array(recipe.weight, number),
        recipe.divisors().numpy().astype(number),
        recipe.overlap_power == 1.0,
        number(recipe.scale),
        number(largest),
        _FINITE[number],
    )

    def merge_chunk(chunk: Chunk) -> tuple[torch.Tensor, bool]:
        result = chunk.buffer("result")
        return result, loops.merge(chunk.load_all().numpy(), *arguments, result.numpy())

    return merge_chunk


def _loops() -> Compiled:
    loops = compiled()
    assert loops is not None, "available() was asked before"
    return loops


def count_block(
    block: Floats, epsilon: Any, largest: Any, bits: int, histograms: npt.NDArray[np.int64]
) -> bool:
    """Add one chunk to the histograms of active agents.

    Args:
        block: base and agents, float ``[1 + agents, length]``, contiguous.
        epsilon: ε, of ``block``'s dtype.
        largest: the largest finite number of that dtype.
        bits: agents per histogram.
        histograms: int64 ``[groups, LANES, cells]``; the cell of a parameter is its
            overlap count times 2^bits, plus a bit for every active agent of the group.

    Returns:
        Whether every difference is finite.
    """
    agents = block.shape[0] - 1
    cell = np.empty(STRIP, np.int32)
    broken = 0
    for start in range(0, block.shape[1], STRIP):
        stop = min(start + STRIP, block.shape[1])
        length = stop - start
        base = block[0, start:stop]
        for group in range(histograms.shape[0]):
            for i in range(length):
                cell[i] = 0
            for t in range(agents):
                value = block[t + 1, start:stop]
                step = 1 << bits
                if t // bits == group:
                    step += 1 << (t % bits)
                add = np.int32(step)
                for i in range(length):
                    size = abs(value[i] - base[i])
                    cell[i] += add if size > epsilon else np.int32(0)
                    broken += 0 if size <= largest else 1
            whole = length - length % LANES
            for i in range(0, whole, LANES):
                histograms[group, 0, cell[i]] += 1
                histograms[group, 1, cell[i + 1]] += 1
                histograms[group, 2, cell[i + 2]] += 1
                histograms[group, 3, cell[i + 3]] += 1
            for i in range(whole, length):
                histograms[group, 0, cell[i]] += 1
    return broken == 0


def merge_block(
    block: Floats,
    epsilon: Any,
    factor: Floats,
    weight: Floats,
    divisor: Floats,
    is_mean: bool,
    scale: Any,
    largest: Any,
    finite: Any,
    out: Floats,
) -> bool:
    """Merge one chunk.

    Args:
        block: base and agents, float ``[1 + agents, length]``, contiguous.
        epsilon: ε, of ``block``'s dtype, as all that follows.
        factor: s λ_t w_t per agent.
        weight: w_t per agent.
        divisor: |T|^p by |T|.
        is_mean: p is 1, so that the overlap count itself is the divisor.
        scale: s.
        largest: the largest number that needs no second look.
        finite: the largest finite number.
        out: where the merged values go, ``[length]``.

    Returns:
        Whether every difference is finite and every merged value smaller than ``largest``.
    """
    agents = block.shape[0] - 1
    overlap = np.empty(STRIP, np.int32)
    shared = np.empty(STRIP, block.dtype)
    large = 0
    for start in range(0, block.shape[1], STRIP):
        stop = min(start + STRIP, block.shape[1])
        length = stop - start
        base = block[0, start:stop]
        lone = out[start:stop]
        for i in range(length):
            overlap[i] = 0
            shared[i] = 0
        for i in range(length):
            lone[i] = base[i]
        for t in range(agents):
            value, w, f = block[t + 1, start:stop], weight[t], factor[t]
            for i in range(length):
                size = abs(value[i] - base[i])
                overlap[i] += np.int32(1) if size > epsilon else np.int32(0)
                large += 0 if size <= finite else 1
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
        if not is_mean:
            for i in range(length):
                shared[i] = shared[i] / divisor[overlap[i]] * scale + base[i]
        else:
            for i in range(length):
                shared[i] = shared[i] / divisor.dtype.type(overlap[i]) * scale + base[i]
        for i in range(length):
            alone, together = lone[i], shared[i]
            lone[i] = together if overlap[i] >= 2 else alone
        for i in range(length):
            large += 0 if abs(lone[i]) < largest else 1
    return large == 0
