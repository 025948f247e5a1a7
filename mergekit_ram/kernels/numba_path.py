"""Counting and merging on the CPU by compiled loops, where numba works.

The loops are in :mod:`mergekit_ram.kernels.loops`; here is how they find what they work on.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mergekit_ram.kernels.chunks import Chunk, Chunks
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.rounding import rounded
from mergekit_ram.kernels.strips import BFLOAT16, FLOAT16, LANES, STRIP, STRIP_BYTES
from mergekit_ram.switches import is_set

LOG = logging.getLogger("mergekit_ram")

Array = npt.NDArray[Any]

DISABLE_VARIABLE = "MERGEKIT_RAM_NATIVE"
"""Set to 0, false or no in the environment, it leaves the arithmetic to torch."""

CHUNK = 262_144
"""Elements per call of a loop that reads the inputs as they are stored."""

_BITS = {
    torch.bfloat16: torch.uint16,
    torch.float16: torch.uint16,
    torch.float32: torch.uint32,
    torch.float64: torch.uint64,
}
"""What the loops read and write."""

_SHIFTS = {torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}

LONGEST_REASON = 200


class _Loops:
    """The module with the compiled loops, or why there is none."""

    def __init__(self) -> None:
        self.module: Any = None
        self.problem: str | None = None
        self._lock = threading.Lock()

    def load(self) -> None:
        try:
            numba = importlib.import_module("numba")
            if numba.config.DISABLE_JIT:
                self.give_up("compilation is switched off (NUMBA_DISABLE_JIT)")
            else:
                self.module = importlib.import_module("mergekit_ram.kernels.loops")
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            self.give_up(f"numba cannot be imported ({_one_line(error)})")

    def give_up(self, problem: str) -> None:
        """Leave the arithmetic to torch from now on, and say so once."""
        with self._lock:
            if self.problem is None:
                self.problem = problem
                LOG.warning(
                    "merging on the CPU in torch, which takes about four times as long as the "
                    "compiled loops: %s; the results are the same",
                    problem,
                )


def available() -> bool:
    """Whether the loops are to be used: not switched off, and nothing is known to ail them."""
    return not _is_switched_off() and _loops().problem is None


def _is_switched_off() -> bool:
    return os.environ.get(DISABLE_VARIABLE, "").strip() != "" and not is_set(DISABLE_VARIABLE)


def why_not() -> str | None:
    """Why torch does the arithmetic on CPUs in this process; None where the compiled loops do.

    Takes the seconds in which the loops are made ready, and tries them on a few numbers.
    """
    if _is_switched_off():
        return f"switched off ({DISABLE_VARIABLE}={os.environ[DISABLE_VARIABLE]})"
    if available():
        chunks = Chunks((torch.zeros(1, device="cpu"),) * 2, None, None)
        try:
            histograms = torch.zeros(1, LANES, 4, dtype=torch.int64, device="cpu")
            counter(chunks, 0.0, 1, histograms)(next(chunks.walk()))
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:
            give_up(error)
    return _loops().problem


def give_up(error: BaseException) -> None:
    """Remember that the loops failed, whatever the reason, and say so once."""
    _loops().give_up(f"numba failed ({_one_line(error)})")


@functools.lru_cache(maxsize=1)
def _loops() -> _Loops:
    """Found once in a process, with the first merge."""
    loops = _Loops()
    loops.load()
    return loops


def _one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= LONGEST_REASON else shown[:LONGEST_REASON] + "…"


def counter(
    chunks: Chunks, epsilon: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk], None]:
    """As :func:`mergekit_ram.kernels.torch_path.counter`, with all lanes in use."""
    strip = Strip(chunks, length=_length(chunks))
    loop = _loops().module.count_block
    threshold, cells = strip.number(epsilon), histograms.numpy()

    def count_chunk(chunk: Chunk) -> None:
        if not loop(*strip.of(chunk), threshold, strip.finite, bits, cells):
            chunk.raise_if_not_finite()

    return count_chunk


def merger(
    chunks: Chunks, recipe: Recipe, largest: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk, torch.Tensor], bool]:
    """As :func:`mergekit_ram.kernels.torch_path.merger`, with all lanes in use."""
    strip = Strip(chunks, length=_length(chunks))
    loop = _loops().module.merge_block
    arguments = (
        strip.number(recipe.epsilon),
        np.array(recipe.unique_factor, strip.number),
        np.array(recipe.weight, strip.number),
        recipe.divisors().numpy().astype(strip.number),
        recipe.overlap_power == 1.0,
        strip.number(recipe.scale),
        strip.number(largest),
        bits,
        histograms.numpy(),
    )

    def merge_chunk(chunk: Chunk, target: torch.Tensor) -> bool:
        is_direct = can_hold(target.dtype, chunks)
        result = target if is_direct else chunk.buffer("result")
        out = result.view(_BITS[result.dtype]).numpy()
        shift = _SHIFTS.get(result.dtype, 0)
        is_small: bool = loop(*strip.of(chunk), *arguments, shift, out)
        if not is_direct:
            target.copy_(rounded(result, target.dtype))
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


def _length(chunks: Chunks) -> int:
    """Elements of a strip that is merged or counted."""
    read = chunks.input_dtype if reads(chunks) else chunks.compute_dtype
    return STRIP_BYTES // read.itemsize


class Strip:
    """Scratch memory of one thread's loops, and how they find their inputs."""

    def __init__(self, chunks: Chunks, count: int | None = None, length: int = STRIP):
        is_double = chunks.compute_dtype == torch.float64
        self.number: Any = np.float64 if is_double else np.float32
        self.finite = np.finfo(self.number).max
        self._reads = reads(chunks)
        self._values = np.empty((count or chunks.count, length), self.number)
        self._bits = self._values.view(np.uint64 if is_double else np.uint32)

    def of(self, chunk: Chunk) -> tuple[Array, Array, int, int, Array, Array]:
        """The first arguments of a loop over this chunk; its inputs must stay alive."""
        return self.reading(chunk.parts if self._reads else chunk.load_all().unbind())

    def reading(self, parts: Sequence[torch.Tensor]) -> tuple[Array, Array, int, int, Array, Array]:
        """The same for tensors ``[length]`` of one dtype that the loops read."""
        addresses = np.array([part.data_ptr() for part in parts], np.uint64)
        like = parts[0][:0].view(_BITS[parts[0].dtype]).numpy()
        shift = _SHIFTS.get(parts[0].dtype, 0)
        return addresses, like, parts[0].numel(), shift, self._values, self._bits
