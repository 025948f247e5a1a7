"""Counting and merging on the CPU by compiled loops, where numba is installed.

The loops are in :mod:`mergekit_ram.kernels.loops`; here is how they find what they work on.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mergekit_ram.kernels.chunks import Chunk, Chunks
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.strips import STRIP

Array = npt.NDArray[Any]

DISABLE_VARIABLE = "MERGEKIT_RAM_NATIVE"
"""Set to 0 in the environment, it leaves the arithmetic to torch."""

CHUNK = 262_144
"""Elements per call of a loop that reads the inputs as they are stored."""

_BITS = {
    torch.bfloat16: torch.uint16,
    torch.float32: torch.uint32,
    torch.float64: torch.uint64,
}
"""What the loops read and write; float16 is converted by torch."""


def available() -> bool:
    """Whether numba is installed, works, and is not switched off."""
    return os.environ.get(DISABLE_VARIABLE) != "0" and _loops() is not None


@functools.lru_cache(maxsize=1)
def _loops() -> Any:
    """The module with the compiled loops, imported with the first merge; None without numba."""
    try:
        return importlib.import_module("mergekit_ram.kernels.loops")
    except ImportError:  # absent, or not made for this numpy
        return None


def counter(
    chunks: Chunks, epsilon: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk], None]:
    """As :func:`mergekit_ram.kernels.torch_path.counter`, with all lanes in use."""
    strip = Strip(chunks)
    loop = _loops().count_block
    threshold, cells = strip.number(epsilon), histograms.numpy()

    def count_chunk(chunk: Chunk) -> None:
        if not loop(*strip.of(chunk), threshold, strip.finite, bits, cells):
            chunk.raise_if_not_finite()

    return count_chunk


def merger(
    chunks: Chunks, recipe: Recipe, largest: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk, torch.Tensor], bool]:
    """As :func:`mergekit_ram.kernels.torch_path.merger`, with all lanes in use."""
    strip = Strip(chunks)
    loop = _loops().merge_block
    arguments = (
        strip.number(recipe.epsilon),
        np.array(recipe.unique_factor, strip.number),
        np.array(recipe.weight, strip.number),
        recipe.divisors().numpy().astype(strip.number),
        recipe.overlap_power == 1.0,
        strip.number(recipe.scale),
        strip.number(largest),
        strip.finite,
        bits,
        histograms.numpy(),
    )

    def merge_chunk(chunk: Chunk, target: torch.Tensor) -> bool:
        is_direct = can_hold(target.dtype, chunks)
        result = target if is_direct else chunk.buffer("result")
        out = result.view(_BITS[result.dtype]).numpy()
        is_small: bool = loop(*strip.of(chunk), *arguments, out)
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


class Strip:
    """Scratch memory of one thread's loops, and how they find their inputs."""

    def __init__(self, chunks: Chunks, count: int | None = None):
        is_double = chunks.compute_dtype == torch.float64
        self.number: Any = np.float64 if is_double else np.float32
        self.finite = np.finfo(self.number).max
        self._reads = reads(chunks)
        self._values = np.empty((count or chunks.count, STRIP), self.number)
        self._bits = self._values.view(np.uint64 if is_double else np.uint32)

    def of(self, chunk: Chunk) -> tuple[Array, Array, int, int, Array, Array]:
        """The first arguments of a loop over this chunk; its inputs must stay alive."""
        return self.reading(chunk.parts if self._reads else chunk.load_all().unbind())

    def reading(self, parts: Sequence[torch.Tensor]) -> tuple[Array, Array, int, int, Array, Array]:
        """The same for tensors ``[length]`` of one dtype that the loops read."""
        addresses = np.array([part.data_ptr() for part in parts], np.uint64)
        like = parts[0][:0].view(_BITS[parts[0].dtype]).numpy()
        shift = 16 if parts[0].dtype == torch.bfloat16 else 0
        return addresses, like, parts[0].numel(), shift, self._values, self._bits
