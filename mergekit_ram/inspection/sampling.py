"""A random share of the rows of every tensor, in groups whose spread tells the error."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import partial
from numbers import Real

import numpy as np
import numpy.typing as npt
import torch
from mergekit.merge_methods.base import TensorGroup

from mergekit_ram.errors import ParameterError
from mergekit_ram.inspection.disk import Disk
from mergekit_ram.kernels.threads import one_thread
from mergekit_ram.merges.groups import map_tensors

GROUPS = 20
"""Random groups of sampled rows. Leaving each one out in turn gives an estimate's error."""

QUANTILE = 2.093024
"""Of Student's t distribution with ``GROUPS`` − 1 degrees of freedom, at 97.5 %."""


@dataclass(frozen=True)
class Drawn:
    """The rows of one tensor that are looked at, group after group."""

    group: TensorGroup
    numels: tuple[int, ...]
    """Elements of every group of rows; those of one group lie together."""

    @classmethod
    def whole(cls, group: TensorGroup) -> Drawn:
        """All rows, as one group."""
        return cls(group, (group.entries[0].tensor.numel(),))


@dataclass(frozen=True)
class Sample:
    """Which rows are looked at: the same ones for the same seed and tensor.

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

    def rows(self, name: str, count: int) -> npt.NDArray[np.int64]:
        """The chosen rows of a tensor, group after group, each in ascending order.

        There are at least two of them, so that no tensor's error is taken for none; a tensor
        of one row is taken whole.
        """
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        most = max(min(2, count), math.ceil(self.fraction * count))
        chosen = torch.randperm(count, generator=generator)[:most].numpy()
        # All groups are put in order at once.
        return np.sort(np.arange(most) % GROUPS * count + chosen) % count

    def draw(self, group: TensorGroup, disk: Disk) -> Drawn:
        """The chosen rows of all tensors of a group, copied.

        Args:
            group: base and agents of one tensor.
            disk: that they may have to be read from.
        """
        shape = group.entries[0].tensor.shape
        if not shape or shape[0] < 2:
            return Drawn.whole(group)
        rows = self.rows(str(group.metadata.name), shape[0])
        chosen = partial(torch.index_select, dim=0, index=torch.from_numpy(rows))
        width = shape[1:].numel()
        numels = tuple(size * width for size in _group_sizes(len(rows)))
        # So few rows are copied before a second thread is awake.
        with disk.watched(), one_thread():
            for entry in group.entries:
                disk.expect(entry.tensor, rows)
            return Drawn(map_tensors(group, chosen), numels)

    def half_width(self, left: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Half of a 95 % interval, by the delete-one-group jackknife.

        Args:
            left: ``[GROUPS, …]`` the figures that each lack one group of rows.
        """
        variance = (GROUPS - 1) * np.var(np.asarray(left, np.float64), axis=0)
        # What was looked at has no sampling error.
        return np.asarray(QUANTILE * np.sqrt(variance * (1 - self.fraction)))


def _group_sizes(rows: int) -> list[int]:
    """How many rows every group gets when they are dealt out in turns, none left without."""
    return [len(range(first, rows, GROUPS)) for first in range(min(rows, GROUPS))]
