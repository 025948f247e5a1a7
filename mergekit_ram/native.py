"""The fused CPU loops of counting and merging, compiled by numba where that is installed.

:func:`count_block` and :func:`merge_block` are plain Python over numpy arrays, and
:func:`compiled` turns them into machine code. They do what the torch operations of
:mod:`mergekit_ram.torch_kernels` do, in the same order and with every operation rounded on its
own, so the bytes are the same; they need one pass in place of dozens, and no lock of Python's.

They take and give numbers as bit patterns, because numpy has no bfloat16: an input is unsigned
integers that, shifted left by ``shift`` bits, are float32 (16 for bfloat16, else 0) or float64.

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

from mergekit_ram.chunks import Chunk, Chunks
from mergekit_ram.recipe import Recipe

Array = npt.NDArray[Any]

DISABLE_VARIABLE = "MERGEKIT_RAM_NATIVE"
"""Set to 0 in the environment, it leaves the arithmetic to torch."""

CHUNK = 262_144
"""Elements per call of a loop that reads the inputs as they are stored."""

STRIP = 1024
LANES = 4
"""Histograms filled in turns: an increment does not wait for the one before it."""

_BITS = {
    torch.bfloat16: torch.uint16,
    torch.float32: torch.uint32,
    torch.float64: torch.uint64,
}
"""What the loops read and write; float16 is converted by torch."""


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


def counter(
    chunks: Chunks, epsilon: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk], None]:
    """As :func:`mergekit_ram.torch_kernels.counter`, with all lanes in use."""
    strip = _Strip(chunks)
    loop = _loops().count
    threshold, cells = strip.number(epsilon), histograms.numpy()

    def count_chunk(chunk: Chunk) -> None:
        if not loop(*strip.of(chunk), threshold, strip.finite, bits, cells):
            chunk.raise_if_not_finite()

    return count_chunk


def merger(chunks: Chunks, recipe: Recipe, largest: float) -> Callable[[Chunk, torch.Tensor], bool]:
    """As :func:`mergekit_ram.torch_kernels.merger`."""
    strip = _Strip(chunks)
    loop = _loops().merge
    arguments = (
        strip.number(recipe.epsilon),
        np.array(recipe.unique_factor, strip.number),
        np.array(recipe.weight, strip.number),
        recipe.divisors().numpy().astype(strip.number),
        recipe.overlap_power == 1.0,
        strip.number(recipe.scale),
        strip.number(largest),
        strip.finite,
    )

    def merge_chunk(chunk: Chunk, target: torch.Tensor) -> bool:
        is_direct = can_hold(target.dtype, chunks)
        result = target if is_direct else chunk.buffer("result")
        out = result.view(_BITS[result.dtype]).numpy()
        is_small = loop(*strip.of(chunk), *arguments, out)
        if not is_direct:
            target.copy_(result)
        return is_small

    return merge_chunk


def can_hold(dtype: torch.dtype, chunks: Chunks) -> bool:
    """Whether the loops read and write this dtype themselves."""
    is_double = chunks.compute_dtype == torch.float64
    return dtype in _BITS and (dtype == torch.float64) == is_double


def reads(chunks: Chunks) -> bool:
    """Whether the loops read these inputs as they are stored: all of one dtype they know."""
    is_plain = chunks.is_uniform and chunks.is_contiguous
    return is_plain and can_hold(chunks.input_dtype, chunks)


class _Strip:
    """Scratch memory of one thread's loops, and how they find their inputs."""

    def __init__(self, chunks: Chunks):
        is_double = chunks.compute_dtype == torch.float64
        self.number: Any = np.float64 if is_double else np.float32
        self.finite = np.finfo(self.number).max
        self._reads = reads(chunks)
        self._values = np.empty((chunks.count, STRIP), self.number)
        self._bits = self._values.view(np.uint64 if is_double else np.uint32)

    def of(self, chunk: Chunk) -> tuple[tuple[Array, ...], int, Array, Array]:
        """The first arguments of a loop over this chunk."""
        parts = chunk.parts if self._reads else chunk.load_all().unbind()
        shift = 16 if parts[0].dtype == torch.bfloat16 else 0
        inputs = tuple(part.view(_BITS[part.dtype]).numpy() for part in parts)
        return inputs, shift, self._values, self._bits


def _loops() -> Compiled:
    loops = compiled()
    assert loops is not None, "available() was asked before"
    return loops


def count_block(
    inputs: tuple[Array, ...],
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
        inputs: bit patterns of base and agents, ``[length]`` each, contiguous.
        shift: that makes floats of them.
        values: scratch, float ``[1 + agents, STRIP]``.
        bits: the same memory as unsigned integers.
        epsilon: ε, of ``values``' dtype.
        finite: the largest finite number of that dtype.
        pattern_bits: agents per histogram.
        histograms: int64 ``[groups, LANES, cells]``; see :mod:`mergekit_ram.torch_kernels`.

    Returns:
        Whether every difference is finite.
    """
    agents = len(inputs) - 1
    cell = np.empty(STRIP, np.int32)
    broken = 0
    for start in range(0, len(inputs[0]), STRIP):
        length = min(STRIP, len(inputs[0]) - start)
        for t in range(agents + 1):
            stored, row = inputs[t][start : start + length], bits[t]
            if shift == 16:
                for i in range(length):
                    row[i] = np.uint32(stored[i]) << np.uint32(16)
            else:
                for i in range(length):
                    row[i] = stored[i]
        base = values[0]
        for group in range(histograms.shape[0]):
            for i in range(length):
                cell[i] = 0
            for t in range(agents):
                value = values[t + 1]
                step = 1 << pattern_bits
                if t // pattern_bits == group:
                    step += 1 << (t % pattern_bits)
                add = np.int32(step)
                for i in range(length):
                    size = abs(value[i] - base[i])
                    cell[i] += add if size > epsilon else np.int32(0)
                    broken += 0 if size <= finite else 1
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
    inputs: tuple[Array, ...],
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
    out: Array,
) -> bool:
    """Merge one chunk.

    Args:
        inputs, shift, values, bits, epsilon, finite: as :func:`count_block` takes them.
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
    agents = len(inputs) - 1
    overlap = np.empty(STRIP, np.int32)
    shared = np.empty(STRIP, values.dtype)
    lone = np.empty(STRIP, values.dtype)
    lone_bits = lone.view(bits.dtype)
    large = 0
    for start in range(0, len(inputs[0]), STRIP):
        length = min(STRIP, len(inputs[0]) - start)
        for t in range(agents + 1):
            stored, row = inputs[t][start : start + length], bits[t]
            if shift == 16:
                for i in range(length):
                    row[i] = np.uint32(stored[i]) << np.uint32(16)
            else:
                for i in range(length):
                    row[i] = stored[i]
        base = values[0]
        for i in range(length):
            overlap[i] = 0
            shared[i] = 0
        for i in range(length):
            lone[i] = base[i]
        for t in range(agents):
            value, w, f = values[t + 1], weight[t], factor[t]
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
