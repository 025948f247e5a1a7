"""The paper's tables, written naively: whole models in dictionaries, no chunk, no trick.

The order of the float operations is the one that the package documents, so that results can
be compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

StateDict = Mapping[str, torch.Tensor]


@dataclass
class Counts:
    parameters: int = 0
    overlap_degree: dict[str, list[int]] = field(default_factory=dict)

    def ratio(self, agent: str) -> float:
        unique, *more = self.overlap_degree[agent]
        shared = sum(more)
        if unique == 0:
            return float("inf") if shared else 0.0
        return shared / unique

    def rescale(self, agent: str, r: float, alpha: float) -> float:
        return 1 + r * min(self.ratio(agent), alpha)


def task_vectors(
    base: torch.Tensor, agents: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The base and the agents in the compute dtype, and every τ_t."""
    promoted = base.dtype
    for tensor in agents.values():
        promoted = torch.promote_types(promoted, tensor.dtype)
    dtype = torch.float64 if promoted == torch.float64 else torch.float32
    base = base.to(dtype)
    values = {name: tensor.to(dtype) for name, tensor in agents.items()}
    return base, values, {name: value - base for name, value in values.items()}


def count(base: StateDict, agents: Mapping[str, StateDict], epsilon: float = 1e-5) -> Counts:
    counts = Counts(overlap_degree={name: [0] * len(agents) for name in agents})
    for key, tensor in base.items():
        present = {name: agent[key] for name, agent in agents.items() if key in agent}
        _, _, deltas = task_vectors(tensor, present)
        active = {name: delta.abs() > epsilon for name, delta in deltas.items()}
        overlap = sum((mask.int() for mask in active.values()), torch.zeros(tensor.shape))
        counts.parameters += tensor.numel()
        for name, mask in active.items():
            for k in range(len(agents)):
                counts.overlap_degree[name][k] += int((mask & (overlap == k + 1)).sum())
    return counts


def merge_tensor(
    base: torch.Tensor,
    agents: Mapping[str, torch.Tensor],
    *,
    epsilon: float = 1e-5,
    rescale: Mapping[str, float] | None = None,
    weight: Mapping[str, float] | None = None,
    scale: float = 1.0,
    overlap_power: float = 1.0,
) -> torch.Tensor:
    """The merged tensor in the compute dtype, not yet rounded to an output dtype."""
    rescale = rescale or {}
    weight = weight or {}
    agents = {name: tensor for name, tensor in agents.items() if weight.get(name, 1.0) != 0}
    base, values, deltas = task_vectors(base, agents)
    active = {name: delta.abs() > epsilon for name, delta in deltas.items()}
    overlap = torch.zeros_like(base)
    total = torch.zeros_like(base)
    for name, mask in active.items():
        overlap += mask
        total += torch.where(mask, deltas[name] * weight.get(name, 1.0), 0)
    powers = [max(k, 1) ** overlap_power for k in range(len(agents) + 1)]
    divisors = torch.tensor(powers, dtype=torch.float64)
    mean = total / divisors.to(base.dtype)[overlap.long()]
    if scale != 1.0:
        mean = mean * scale
    result = torch.where(overlap >= 2, mean + base, base)
    for name, mask in active.items():
        factor = scale * rescale.get(name, 1.0) * weight.get(name, 1.0)
        # A number of the dtype that is reckoned in: what rounds to 1 leaves the agent whole.
        factor = torch.tensor(factor, dtype=base.dtype).item()
        alone = values[name] if factor == 1.0 else deltas[name] * factor + base
        result = torch.where(mask & (overlap == 1), alone, result)
    return result


def merge(
    base: StateDict,
    agents: Mapping[str, StateDict],
    *,
    r: float = 0.0,
    alpha: float = 2.0,
    epsilon: float = 1e-5,
    scale: float = 1.0,
    overlap_power: float = 1.0,
) -> dict[str, torch.Tensor]:
    """RAM+ of whole models (RAM at r = 0), in the compute dtype."""
    counts = count(base, agents, epsilon)
    rescale = {name: counts.rescale(name, r, alpha) for name in agents}
    return {
        key: merge_tensor(
            tensor,
            {name: agent[key] for name, agent in agents.items() if key in agent},
            epsilon=epsilon,
            rescale=rescale,
            scale=scale,
            overlap_power=overlap_power,
        )
        for key, tensor in base.items()
    }


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bit patterns: tells -0.0 from 0.0."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(
            a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
        )
    )


@dataclass
class Energies:
    """Sums over a whole model, float64."""

    energy: dict[str, float] = field(default_factory=dict)
    unique: dict[str, float] = field(default_factory=dict)
    shared: dict[str, float] = field(default_factory=dict)
    mean: dict[str, float] = field(default_factory=dict)
    both: dict[tuple[str, str], int] = field(default_factory=dict)
    cosine: dict[tuple[str, str], float] = field(default_factory=dict)
    conflicts: dict[tuple[str, str], float] = field(default_factory=dict)


def energies(base: StateDict, agents: Mapping[str, StateDict], epsilon: float = 1e-5) -> Energies:
    """All tensors as one long vector per agent."""
    flat = {
        name: torch.cat(
            [
                task_vectors(base[key], {name: agent[key]})[2][name].double().flatten()
                for key in base
            ]
        )
        for name, agent in agents.items()
    }
    active = {name: delta.abs() > epsilon for name, delta in flat.items()}
    overlap = sum(mask.double() for mask in active.values())
    plain_mean = sum(flat.values()) / len(flat)
    shared_mean = sum(flat[n] * active[n] for n in flat) / overlap.clamp(min=1)
    found = Energies()
    for name, delta in flat.items():
        mask = active[name]
        found.energy[name] = float((delta[mask] ** 2).sum())
        found.unique[name] = float((delta[mask & (overlap == 1)] ** 2).sum())
        shared = mask & (overlap >= 2)
        found.shared[name] = float((shared_mean[shared] * delta[shared]).sum())
        found.mean[name] = float((plain_mean[mask] * delta[mask]).sum())
        for other, other_delta in flat.items():
            both = mask & active[other]
            one, two = delta[both], other_delta[both]
            found.both[name, other] = int(both.sum())
            found.cosine[name, other] = float(one @ two / (one.norm() * two.norm()))
            found.conflicts[name, other] = float((one.sign() != two.sign()).double().mean())
    return found
