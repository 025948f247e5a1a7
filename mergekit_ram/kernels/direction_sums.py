"""What ``ram_directions`` keeps of every update, and which directions agents share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mergekit_ram.kernels.energies import Array
from mergekit_ram.kernels.merge_directions import Solved, own_precision, solve, updates_of
from mergekit_ram.kernels.updates import Layout


@dataclass
class DirectionSums:
    """Sums over the matrices of a tensor, for N agents.

    A matrix counts as often as it has parameters, for the agents that changed it.
    """

    kept: Array
    """``[N]`` Σ s X · τ over all values, also of what is no matrix."""
    rank: Array
    """``[N]`` sum of effective rank / in: 1 / (in Σ λ²), λ the eigenvalues of G."""
    cosine: Array
    """``[N, N]`` sum of the cosines of two agents' Grams."""
    both: Array
    """``[N, N]`` parameters of the matrices that both changed."""

    @classmethod
    def zeros(cls, agents: int) -> DirectionSums:
        """Sums over nothing."""
        square = (agents, agents)
        return cls(np.zeros(agents), np.zeros(agents), np.zeros(square), np.zeros(square))

    def of_agent(self, place: int) -> tuple[float, float, float]:
        """What is kept of an agent's update, its ranks, and what these are divided by."""
        found = self.kept[place], self.rank[place], self.both[place, place]
        kept, rank, size = map(float, found)
        return kept, rank, size

    def add(self, other: DirectionSums, places: Sequence[int]) -> None:
        """Add the sums of some of the agents, which have these places here."""
        pairs = np.ix_(places, places)
        self.kept[places] += other.kept
        self.rank[places] += other.rank
        self.cosine[pairs] += other.cosine
        self.both[pairs] += other.both


@torch.no_grad()
def measure(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    ridge: float,
    weight: Sequence[float],
    scale: float,
    layout: Layout,
    dtype: torch.dtype | None = None,
) -> DirectionSums:
    """Measure one tensor; arguments and errors as of :func:`.merge_directions.merge`."""
    found = DirectionSums.zeros(len(agents))
    if not base.numel() or not agents:
        return found
    is_matrix = layout.holds_matrices(base)
    for updates in updates_of(base, agents, epsilon=epsilon, layout=layout, dtype=dtype):
        with own_precision(base.device):
            solved = solve(updates, weight, ridge, is_matrix=is_matrix, with_products=True)
            if solved is not None:
                found.add(_of_matrix(solved, len(agents), scale), range(len(agents)))
    return found


def _of_matrix(solved: Solved, agents: int, scale: float) -> DirectionSums:
    found = DirectionSums.zeros(agents)
    places = list(solved.numbers)
    updates = solved.updates
    for block in updates.walk():
        change = solved.solution.lines(block)
        for t, (place, unit) in enumerate(zip(places, updates.units, strict=True)):
            product = float((change * block.update(t)).sum(dtype=torch.float64))
            found.kept[place] += scale * product / (unit * solved.unit)
    if solved.gram_products is not None:
        products = solved.gram_products.numpy()
        size, (_, width) = updates.base.numel(), updates.shape
        own = np.diag(products)
        found.rank[places] = size / (width * own)
        pairs = np.ix_(places, places)
        found.cosine[pairs] = size * products / np.sqrt(own[:, None] * own)
        found.both[pairs] = size
    return found
