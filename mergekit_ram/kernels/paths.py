"""Which arithmetic one tensor gets: compiled loops, or torch operations."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch

from mergekit_ram.kernels import numba_path, torch_path
from mergekit_ram.kernels.chunks import (
    SERIAL_CHUNK,
    Chunks,
    KernelInputError,
    KernelOverflowError,
)
from mergekit_ram.kernels.recipe import KernelParameterError
from mergekit_ram.kernels.threads import workers_for

T = TypeVar("T")

REFUSALS = (KernelInputError, KernelOverflowError, KernelParameterError)


def on_best_path(
    chunks: Chunks,
    out_dtype: torch.dtype,
    run: Callable[[ModuleType, int], T],
    *,
    by_shares: bool = False,
) -> T:
    """Call ``run`` with a path and a number of threads; where the loops fail, again with torch's.

    The loops are numba's, and may fail in any way at all: in a cache that is full, cut or not to
    be written to, in a library that is missing. A merge goes on then, from this tensor's start.

    Args:
        chunks: of the inputs; their size is made to suit the path.
        out_dtype: that results are rounded to.
        run: reckons with all of the tensor, and keeps nothing of an earlier call.
        by_shares: it needs no scratch memory where the loops read and write what is stored, so
            every thread gets one chunk for its whole share and never asks for Python's lock.
    """
    if chunks.device.type == "cpu" and numba_path.available():
        workers = workers_for(chunks.numel)
        chunks.prefer_size(_size(chunks, out_dtype, workers if by_shares else None))
        try:
            return run(numba_path, workers)
        except (*REFUSALS, KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:
            numba_path.give_up(error)
        chunks.prefer_size(None)
    # Torch operations are so short that handing over Python's lock between them costs all that
    # a second thread gains.
    return run(torch_path, 1)


def _size(chunks: Chunks, out_dtype: torch.dtype, shares: int | None) -> int:
    """Elements per chunk of the loops."""
    if not (numba_path.reads(chunks) and numba_path.can_hold(out_dtype, chunks)):
        return SERIAL_CHUNK
    if shares is None:
        return numba_path.CHUNK
    # In whole steps of a closer look, so that what it finds first depends on no thread.
    steps = -(-chunks.numel // (shares * SERIAL_CHUNK))
    return max(1, steps) * SERIAL_CHUNK
