"""Counts of one tensor, and the histograms that they are read from."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mergekit_ram.kernels.strips import LANES

PATTERN_BITS = 8
"""Agents whose activity one histogram tells apart; more agents share several histograms."""


@dataclass(frozen=True)
class OverlapCounts:
    """How many parameters of one tensor each agent changed, alone and with others.

    ``overlap_degree[t][k]`` is the number of active parameters of agent ``t`` with overlap
    count ``k + 1``: changed by it and ``k`` others.
    """

    numel: int
    overlap_degree: tuple[tuple[int, ...], ...]


class Tally:
    """Histograms of which agents are active together, and the counts that follow from them.

    Args:
        agents: how many there are to count; of none nothing is counted.
    """

    def __init__(self, agents: int):
        self._agents = agents
        self.bits = max(1, min(PATTERN_BITS, agents))
        self._shape = (-(-agents // self.bits), LANES, (agents + 1) << self.bits)

    def histograms(self, device: torch.device, *each: int) -> torch.Tensor:
        """Zeros, int64 ``[*each, groups, lanes, cells]``: one group per ``bits`` agents."""
        return torch.zeros((*each, *self._shape), dtype=torch.int64, device=device)

    def counts(self, numel: int, found: Sequence[torch.Tensor]) -> OverlapCounts:
        """What all threads' histograms ``[groups, cells]`` say together."""
        total = torch.stack(list(found)).sum(dim=0).cpu()
        return OverlapCounts(numel, tuple(map(tuple, self.degrees(total).tolist())))

    def degrees(self, histograms: torch.Tensor) -> torch.Tensor:
        """Active parameters per agent and overlap count ≥ 1, ``[…, agents, agents]``.

        Args:
            histograms: ``[…, groups, cells]``.
        """
        shape = (*histograms.shape[:-1], self._agents + 1, 1 << self.bits)
        by_overlap = histograms.view(shape)[..., 1:, :]
        # [groups, overlap counts, patterns] times [patterns, agents of the group]
        found = (by_overlap @ _membership(self.bits)).transpose(-1, -2).flatten(-3, -2)
        return found[..., : self._agents, :]


@functools.lru_cache
def _membership(bits: int) -> torch.Tensor:
    """Which agents of a group are in which pattern, int64 ``[patterns, bits]``."""
    patterns, places = (torch.arange(n, device="cpu") for n in (1 << bits, bits))
    return (patterns.unsqueeze(1) >> places) & 1
