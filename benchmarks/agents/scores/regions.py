"""Parts of task vectors: which agents changed a weight, and models that hold one part alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mergekit_ram import OverlapStatistics, count
from mergekit_ram.overlap import AgentCounts, TensorOverlap

Weights = dict[str, torch.Tensor]

EPSILON = 1e-5


def statistics(
    base: Weights, agents: Mapping[str, Weights], epsilon: float = EPSILON
) -> OverlapStatistics:
    """The counts of the whole model, as RAM+ takes them."""
    tensors = []
    for name, value in base.items():
        counts = count(value, [weights[name] for weights in agents.values()], epsilon=epsilon)
        rows = zip(agents, counts.overlap_degree, strict=True)
        agent_counts = tuple(AgentCounts(model=m, overlap_degree=tuple(r)) for m, r in rows)
        tensors.append(TensorOverlap(name=name, numel=value.numel(), agents=agent_counts))
    return OverlapStatistics(tensors=tuple(tensors))


def overlap_rows(
    base: Weights, agents: Mapping[str, Weights], epsilon: float = EPSILON
) -> dict[str, dict[str, Any]]:
    """Density, overlap degree and λ at RAM+'s defaults, by agent."""
    return {
        agent.model: {
            "density": agent.density,
            "overlap_degree": agent.overlap_degree,
            "rescale": agent.rescale(r=0.1, alpha=2.0),
        }
        for agent in statistics(base, agents, epsilon).agents
    }


class Regions:
    """An agent's task vector, cut by how many agents changed the weight."""

    def __init__(self, base: Weights, agents: Mapping[str, Weights], agent: str) -> None:
        """Find the weights that the agent changed, alone or with others."""
        self._base = base
        self._delta = {name: agents[agent][name] - value for name, value in base.items()}
        self.unique: Weights = {}
        self.shared: Weights = {}
        for name, value in base.items():
            changes = torch.stack([(w[name] - value).abs() > EPSILON for w in agents.values()])
            mine = self._delta[name].abs() > EPSILON
            self.unique[name] = mine & (changes.sum(dim=0) == 1)
            self.shared[name] = mine & (changes.sum(dim=0) > 1)

    def model(self, mask: Weights, factor: float = 1.0) -> Weights:
        """The base with the agent's task vector within a mask, times a factor."""
        return {n: value + factor * self._delta[n] * mask[n] for n, value in self._base.items()}

    def half(self, mask: Weights, seed: int) -> Weights:
        """A random half of a mask."""
        generator = torch.Generator().manual_seed(seed)
        return {n: m & (torch.rand(m.shape, generator=generator) < 0.5) for n, m in mask.items()}

    def realised(self, merged: Weights, plain: Weights) -> Realised:
        """What became of λ in a stored RAM+ merge; ``plain`` is the same merge with λ = 1."""
        product = square = 0.0
        changed = unique = 0
        for name, mask in self.unique.items():
            delta = self._delta[name][mask].double()
            product += float(((merged[name] - self._base[name])[mask].double() * delta).sum())
            square += float(delta.square().sum())
            changed += int((merged[name] != plain[name])[mask].sum())
            unique += int(mask.sum())
        return Realised(
            factor=product / square if square else None,
            changed_share=changed / unique if unique else None,
        )


@dataclass(frozen=True)
class Realised:
    """Σ (out − base) τ / Σ τ² over the unique weights, and how many of them λ changed at all.

    Both are None for an agent without unique weights.
    """

    factor: float | None
    changed_share: float | None
