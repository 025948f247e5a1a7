"""Rows of mapped files are asked for before they are read, as long as they come from a disk.

Whoever reads a row of a mapped file waits for it, and has the system read its neighbours as well,
up to megabytes of them: one row in a hundred would bring in the whole file, wait after wait.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

PATIENCE = 4096
"""Rows that are all found in memory before no more are asked for: asking takes a microsecond."""

Rows = npt.NDArray[np.int64]
Advise = Callable[[int, int, int], int]


class Disk:
    """What is known of where the models' pages are: in memory, or still on the disk."""

    def __init__(self) -> None:
        self._rows = 0
        """That were asked for since the disk was last read."""
        self._asks = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it rows are asked for and read. Where they come from tells of the next ones."""
        if _madvise() is None:
            yield
            return
        self._asks = self._rows < PATIENCE
        before = _read_from_disk()
        yield
        if _read_from_disk() != before:
            self._rows = 0

    def expect(self, tensor: torch.Tensor, rows: Rows) -> None:
        """Ask for rows of a tensor, all at once; this takes no memory and does not wait."""
        advise = _madvise()
        if advise is None or not self._asks or not _may_be_mapped(tensor):
            return
        self._rows += len(rows)
        for start, size in stretches(tensor, rows):
            advise(start, size, mmap.MADV_WILLNEED)


def stretches(tensor: torch.Tensor, rows: Rows) -> list[tuple[int, int]]:
    """The pages that rows of a contiguous tensor lie in: addresses and bytes, without overlap.

    Args:
        tensor: at least one element in every row.
        rows: at least one, in any order.
    """
    width = tensor[0].nbytes
    begin = tensor.data_ptr() + np.sort(rows) * width
    first, stop = begin // mmap.PAGESIZE, -(-(begin + width) // mmap.PAGESIZE)
    apart = first[1:] > stop[:-1]
    first, stop = first[np.r_[True, apart]], stop[np.r_[apart, True]]
    places = zip(first.tolist(), (stop - first).tolist(), strict=True)
    return [(place * mmap.PAGESIZE, pages * mmap.PAGESIZE) for place, pages in places]


def _may_be_mapped(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel() > 0


def _read_from_disk() -> tuple[int, int]:
    """How often this process read from a disk so far, and how often it waited for a page."""
    import resource  # Windows has neither this nor madvise

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_inblock, used.ru_majflt


@cache
def _madvise() -> Advise | None:
    """The C library's ``madvise``; None where there is none, and nothing is asked for."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found: Advise = function
    return found
