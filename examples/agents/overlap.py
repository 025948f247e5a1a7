"""How much each agent changed and how much of it others changed too: densities, rho, lambda."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Weights = dict[str, torch.Tensor]

# A weight counts as changed by an agent when it moved by more than this (the paper's epsilon).
CHANGE_THRESHOLD = 1e-5
# RAM+ scales an agent's own changes by 1 + RESCALE_RATE * min(rho, RHO_CAP).
RESCALE_RATE = 0.1
RHO_CAP = 2.0


@dataclass(frozen=True)
class Overlap:
    """One agent against the others; ``rho`` is its shared over its unique changes."""

    density: float
    shared: int
    unique: int
    rho: float
    scale: float


def measure_overlap(base: Weights, agents: dict[str, Weights]) -> dict[str, Overlap]:
    """Compare every agent with the base, over all weights of the model together."""
    changed = {name: _changed(base, weights) for name, weights in agents.items()}
    changers = torch.stack(list(changed.values())).sum(dim=0)
    return {name: _overlap(mask, changers) for name, mask in changed.items()}


def _changed(base: Weights, agent: Weights) -> torch.Tensor:
    differences = ((agent[name].float() - value.float()).abs() for name, value in base.items())
    return torch.cat([(d > CHANGE_THRESHOLD).flatten() for d in differences])


def _overlap(mask: torch.Tensor, changers: torch.Tensor) -> Overlap:
    shared = int((mask & (changers > 1)).sum())
    unique = int((mask & (changers == 1)).sum())
    rho = shared / unique if unique else float("inf")
    return Overlap(
        density=(shared + unique) / mask.numel(),
        shared=shared,
        unique=unique,
        rho=rho,
        scale=1 + RESCALE_RATE * min(rho, RHO_CAP),
    )
