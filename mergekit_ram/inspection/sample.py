"""A random share of the rows of every tensor, in groups that each stand for the whole model."""

from __future__ import annotations

import ctypes
import math
import mmap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from mergekit.merge_methods.base import TensorGroup

from mergekit_ram.errors import ParameterError
from mergekit_ram.kernels.blocks import one_thread
from mergekit_ram.models.groups import map_tensors

GROUPS = 10
"""Random groups of the sampled rows. Each has rows of every tensor that is not read whole."""


@dataclass(frozen=True)
class Rows:
    """The sampled rows of base and agents of one tensor, copied, or the whole tensor."""

    group: TensorGroup
    numels: tuple[int, ...]
    """Elements of each group of rows, one group after the other; of a whole tensor, its size."""
    count: int = 0
    """Sampled rows; 0 if the tensor is whole, and its sums are no estimates."""

    @classmethod
    def whole(cls, group: TensorGroup) -> Rows:
        """All of a tensor."""
        return cls(group, (group.entries[0].tensor.numel(),))


@dataclass(frozen=True)
class Sample:
    """A choice of rows, the same for the same seed and tensor.

    Args:
        fraction: of the rows of every tensor, above 0 and below 1.
        seed: of the choice.

    Raises:
        ParameterError: another fraction.
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        is_number = isinstance(self.fraction, Real) and not isinstance(self.fraction, bool)
        if not (is_number and 0 < self.fraction < 1):
            raise ParameterError(
                f"sample must be a share of the rows above 0 and below 1; got {self.fraction!r}"
            )

    def draw(self, group: TensorGroup) -> Rows:
        """Copy the chosen rows of a tensor, at least one for each group.

        A row is one index of the first axis; where a tensor has more than two axes, of the first
        two: experts that are stored together are not drawn as wholes.

        Args:
            group: base and agents of one tensor, borrowed.
        """
        if group.entries[0].tensor.ndim > 2:
            group = map_tensors(group, partial(torch.flatten, start_dim=0, end_dim=1))
        shape = group.entries[0].tensor.shape
        count = max(GROUPS, math.ceil(self.fraction * shape[0])) if shape else 0
        if not shape.numel() or not shape or count >= shape[0]:
            return Rows.whole(group)
        numbers, sizes = self._choose(str(group.metadata.name), shape[0], count)
        width = shape[1:].numel()
        return Rows(
            map_tensors(group, partial(_picked, numbers=numbers)),
            tuple(size * width for size in sizes),
            count,
        )

    def _choose(self, name: str, total: int, count: int) -> tuple[torch.Tensor, list[int]]:
        """Numbers of rows, group after group and ascending in each, and the groups' sizes."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        chosen = torch.randperm(total, generator=generator)[:count].numpy()
        ordered = np.sort(np.arange(count) % GROUPS * total + chosen) % total
        return torch.from_numpy(ordered), [len(range(g, count, GROUPS)) for g in range(GROUPS)]


def _picked(tensor: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    # Waking other threads takes longer than to copy so few rows.
    with _read_at_random(tensor), one_thread():
        return tensor.index_select(0, numbers)


@contextmanager
def _read_at_random(tensor: torch.Tensor) -> Iterator[None]:
    """Ask the system not to read ahead in the mapped file of a tensor.

    By default, every row that is not in memory brings in megabytes of its neighbours.
    """
    advise = _madvise()
    if advise is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
        yield
        return
    start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = tensor.data_ptr() + tensor.nbytes - start
    advise(start, size, mmap.MADV_RANDOM)
    try:
        yield
    finally:
        # A merge in the same process reads the same mapping from beginning to end.
        advise(start, size, mmap.MADV_NORMAL)


@cache
def _madvise() -> Any:
    """The C library's ``madvise``; None where there is none."""
    if not hasattr(mmap, "MADV_RANDOM"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
