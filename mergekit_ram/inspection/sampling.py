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
from mergekit_ram.kernels.blocks import one_thread
from mergekit_ram.merges.groups import map_tensors

GROUPS = 20
"""Random groups of sampled rows. Leaving each one out in turn gives an estimate's error."""

QUANTILES = np.array(
    [
        *(0.0, 12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622),
        *(2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930),
    ]
)
"""Of Student's t distribution at 97.5 %, by degrees of freedom. Where there are none, nothing was
drawn: all was looked at."""


@dataclass(frozen=True)
class Drawn:
    """The rows of one tensor that are looked at, group after group."""

    group: TensorGroup
    numels: tuple[int, ...]
    """Elements of every group of rows; those of one group lie together."""
    groups: tuple[int, ...] = ()
    """Which of all :data:`GROUPS` these are; none of a tensor that is looked at whole."""

    @classmethod
    def whole(cls, group: TensorGroup) -> Drawn:
        """All rows together."""
        return cls(group, (group.entries[0].tensor.numel(),))


@dataclass(frozen=True)
class Rows:
    """The rows that are chosen of a tensor."""

    numbers: npt.NDArray[np.int64]
    """Group after group, each in ascending order."""
    sizes: tuple[int, ...]
    """Of the groups that have any, in this order."""
    groups: tuple[int, ...]
    """Which of all :data:`GROUPS` these are."""


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

    def rows(self, name: str, count: int) -> Rows:
        """The chosen rows of a tensor, at least two, so that no error is taken for none."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        most = max(2, math.ceil(self.fraction * count))
        chosen = torch.randperm(count, generator=generator)[:most].numpy()
        # Tensors of a few rows begin at different groups, so that together they have rows in all.
        first = int(torch.randint(GROUPS, (), generator=generator))
        # All groups are put in order at once.
        ordered = np.sort(np.arange(len(chosen)) % GROUPS * count + chosen) % count
        sizes = [len(range(place, len(chosen), GROUPS)) for place in range(GROUPS)]
        return Rows(
            ordered,
            tuple(size for size in sizes if size),
            tuple((first + place) % GROUPS for place, size in enumerate(sizes) if size),
        )

    def draw(self, group: TensorGroup, disk: Disk) -> Drawn:
        """The chosen rows of all tensors of a group, copied.

        A row is what the last axis holds; one of a tensor of more than two axes, all but the
        first two: experts that are stored together are not drawn as wholes.

        Args:
            group: base and agents of one tensor.
            disk: that they may have to be read from.
        """
        if group.entries[0].tensor.ndim > 2:
            group = map_tensors(group, partial(torch.flatten, start_dim=0, end_dim=1))
        shape = group.entries[0].tensor.shape
        if not shape or shape[0] < 2:
            return Drawn.whole(group)
        rows = self.rows(str(group.metadata.name), shape[0])
        chosen = partial(torch.index_select, dim=0, index=torch.from_numpy(rows.numbers))
        width = shape[1:].numel()
        # So few rows are copied before a second thread is awake.
        with disk.watched(), one_thread():
            for entry in group.entries:
                disk.expect(entry.tensor, rows.numbers)
            numels = tuple(size * width for size in rows.sizes)
            return Drawn(map_tensors(group, chosen), numels, rows.groups)

    def half_width(
        self, whole: npt.ArrayLike, left: npt.ArrayLike, filled: npt.ArrayLike = GROUPS
    ) -> npt.NDArray[np.float64]:
        """Half of a 95 % interval, by the delete-one-group jackknife.

        Args:
            whole: ``[…]`` the figures.
            left: ``[GROUPS, …]`` the same, each without one group of rows.
            filled: ``[…]`` in how many groups there is anything to leave out.
        """
        groups = np.asarray(filled)
        apart = ((np.asarray(left, np.float64) - np.asarray(whole)) ** 2).sum(axis=0)
        variance = apart * (groups - 1) / np.maximum(1, groups)
        # What was looked at has no sampling error.
        error = np.sqrt(np.maximum(0.0, variance) * (1 - self.fraction))
        return np.asarray(QUANTILES[np.maximum(0, groups - 1)] * error)
