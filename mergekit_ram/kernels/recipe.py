"""The scalars of one merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Recipe:
    """What a merge does to every parameter; ``unique_factor[t]`` is s λ_t w_t."""

    epsilon: float
    weight: tuple[float, ...]
    unique_factor: tuple[float, ...]
    scale: float
    overlap_power: float

    @classmethod
    def of(
        cls,
        agent_count: int,
        epsilon: float,
        rescale: Sequence[float] | None,
        weight: Sequence[float] | None,
        scale: float,
        overlap_power: float,
    ) -> Recipe:
        rescale = [1.0] * agent_count if rescale is None else rescale
        weight = [1.0] * agent_count if weight is None else weight
        factors = tuple(scale * λ * w for λ, w in zip(rescale, weight, strict=True))
        return cls(epsilon, tuple(weight), factors, scale, overlap_power)

    def divisors(self) -> torch.Tensor:
        """|T|^p by |T|, float64; an untouched parameter divides by one."""
        steps = torch.arange(len(self.weight) + 1, dtype=torch.float64).clamp(min=1.0)
        return steps.pow(self.overlap_power)
