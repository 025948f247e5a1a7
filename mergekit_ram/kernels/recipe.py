"""What one merge does to every parameter of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Recipe:
    """The scalars of a merge, and how its numbers are rounded and walked through.

    ``unique_factor[t]`` is s λ_t w_t; the rest is explained where
    :func:`mergekit_ram.kernels.count_and_merge.merge` takes it.
    """

    epsilon: float
    weight: tuple[float, ...]
    unique_factor: tuple[float, ...]
    scale: float
    overlap_power: float
    dtype: torch.dtype | None = None
    out_dtype: torch.dtype | None = None
    chunk_size: int | None = None

    @classmethod
    def of(
        cls,
        agent_count: int,
        epsilon: float,
        rescale: Sequence[float] | None,
        weight: Sequence[float] | None,
        scale: float,
        overlap_power: float,
        *,
        dtype: torch.dtype | None = None,
        out_dtype: torch.dtype | None = None,
        chunk_size: int | None = None,
    ) -> Recipe:
        rescale = [1.0] * agent_count if rescale is None else rescale
        weight = [1.0] * agent_count if weight is None else weight
        return cls(
            epsilon=epsilon,
            weight=tuple(weight),
            unique_factor=tuple(scale * λ * w for λ, w in zip(rescale, weight, strict=True)),
            scale=scale,
            overlap_power=overlap_power,
            dtype=dtype,
            out_dtype=out_dtype,
            chunk_size=chunk_size,
        )

    def divisors(self) -> torch.Tensor:
        """|T|^p by |T|, float64; an untouched parameter divides by one."""
        steps = torch.arange(len(self.weight) + 1, dtype=torch.float64).clamp(min=1.0)
        return steps.pow(self.overlap_power)
