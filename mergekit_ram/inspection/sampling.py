"""A random share of the rows of every tensor, in groups whose spread tells the error."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from mergekit.merge_methods.base import TensorGroup

from mergekit_ram.merges.groups import map_tensors

GROUPS = 20
"""Random groups of sampled rows. Leaving each one out in turn gives an estimate's error."""

QUANTILE = 2.093024
"""Of Student's t distribution with ``GROUPS`` − 1 degrees of freedom, at 97.5 %."""


@dataclass(frozen=True)
class Sample:
    """Which rows are looked at: the same ones for the same seed and tensor.

    Args:
        fraction: of the rows of every tensor, above 0 and below 1.
        seed: of the choice.
    """

    fraction: float
    seed: int = 0

    def rows(self, name: str, count: int) -> list[torch.Tensor]:
        """The chosen rows of a tensor, in at most ``GROUPS`` groups, each in ascending order.

        There are at least two of them, so that no tensor's error is taken for none; a tensor
        of one row is taken whole.
        """
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        chosen = torch.randperm(count, generator=generator)
        chosen = chosen[: max(min(2, count), math.ceil(self.fraction * count))]
        return [chosen[first::GROUPS].sort().values for first in range(min(GROUPS, len(chosen)))]

    def parts(self, group: TensorGroup) -> list[TensorGroup]:
        """The chosen rows of all tensors of a group, copied."""
        shape = group.entries[0].tensor.shape
        if not shape or shape[0] < 2:
            return [group]
        return [
            map_tensors(group, partial(torch.index_select, dim=0, index=rows))
            for rows in self.rows(str(group.metadata.name), shape[0])
        ]

    def interval(self, estimate: float, left: Sequence[float]) -> tuple[float, float]:
        """The 95 % interval of a figure, by the delete-one-group jackknife.

        Args:
            estimate: the figure of the whole sample.
            left: the ``GROUPS`` figures that each lack one group of rows.
        """
        mean = sum(left) / GROUPS
        variance = (GROUPS - 1) / GROUPS * sum((value - mean) ** 2 for value in left)
        # What was looked at has no sampling error.
        half = QUANTILE * math.sqrt(variance * (1 - self.fraction))
        return estimate - half, estimate + half
