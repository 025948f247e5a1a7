"""The rule of ``ram_directions``, written naively in float64: whole tensors, one formula a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

TOLERANCE = 1e-5
"""Of the largest update, in float32."""


def by_length(updates: Sequence[np.ndarray]) -> np.ndarray:
    """Σ d |d| / √(Σ d²), entry by entry."""
    length = np.sqrt(sum(update**2 for update in updates))
    total = sum(update * np.abs(update) for update in updates)
    return np.divide(total, length, out=np.zeros_like(total), where=length > 0)


def change(updates: Sequence[np.ndarray], weights: Sequence[float], ridge: float) -> np.ndarray:
    """X of one matrix ``[out, in]``."""
    pairs = [(τ, w) for τ, w in zip(updates, weights, strict=True) if w and τ.any()]
    if not pairs:
        return np.zeros_like(updates[0])
    anchor = by_length([w * τ for τ, w in pairs])
    width = anchor.shape[1]
    grams = [τ.T @ τ / (τ**2).sum() for τ, _ in pairs]
    misfit = sum((anchor - w * τ) @ gram for (τ, w), gram in zip(pairs, grams, strict=True))
    system = sum(grams) + ridge * len(pairs) / width * np.eye(width)
    return anchor - misfit @ np.linalg.inv(system)


def merge_tensor(
    base: torch.Tensor,
    agents: Mapping[str, torch.Tensor],
    *,
    epsilon: float = 1e-5,
    ridge: float = 0.3,
    scale: float = 1.0,
    weight: Mapping[str, float] | None = None,
    input_first: bool = False,
) -> torch.Tensor:
    """The merged tensor in float64, not yet rounded.

    Of three axes the first one counts matrices; of four or more the kernel's are the input's.
    """
    start = base.double().numpy()
    updates = [agent.double().numpy() - start for agent in agents.values()]
    updates = [np.where(np.abs(τ) > epsilon, τ, 0) for τ in updates]
    weights = [(weight or {}).get(name, 1.0) for name in agents]
    if start.ndim < 2:
        kept = [w * τ for τ, w in zip(updates, weights, strict=True) if w]
        found = by_length(kept) if kept else np.zeros_like(start)
    elif start.ndim == 3:
        found = np.stack(
            [
                _change_stored([τ[e] for τ in updates], weights, ridge, input_first)
                for e in range(len(start))
            ]
        )
    else:
        flat = [τ.reshape(len(τ), -1) for τ in updates]
        found = _change_stored(flat, weights, ridge, input_first).reshape(start.shape)
    return torch.from_numpy(start + scale * found)


def _change_stored(
    updates: Sequence[np.ndarray], weights: Sequence[float], ridge: float, input_first: bool
) -> np.ndarray:
    if input_first:
        return change([τ.T for τ in updates], weights, ridge).T
    return change(updates, weights, ridge)


def merge(
    base: Mapping[str, torch.Tensor], agents: Mapping[str, Mapping[str, torch.Tensor]], **more: Any
) -> dict[str, torch.Tensor]:
    """Whole models, in float64."""
    return {
        name: merge_tensor(tensor, {a: held[name] for a, held in agents.items()}, **more)
        for name, tensor in base.items()
    }


def assert_close(
    merged: torch.Tensor,
    expected: torch.Tensor,
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    label: str = "",
) -> None:
    """Within 1e-5 of the largest update, and the rounding of what was written."""
    largest = max(float((a.double() - base.double()).abs().max()) for a in agents)
    rounding = expected.abs() * torch.finfo(merged.dtype).eps / 2
    error = (merged.double() - expected).abs()
    allowed = TOLERANCE * largest + rounding
    worst = int((error - allowed).argmax())
    assert bool((error <= allowed).all()), (
        f"{label}: {float(merged.flatten()[worst])} instead of {float(expected.flatten()[worst])}"
    )
