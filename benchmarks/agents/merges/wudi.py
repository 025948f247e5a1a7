"""WUDI where fusion-bench's takes too long: the same steps, their gradients from Gram matrices.

fusion-bench builds Σ_t ‖(X − τ_t) τ_tᵀ‖² / ‖τ_t‖² anew in every step, which for an embedding
``[49152, 576]`` is three matrices of 49152 × 49152. The gradient of the same sum,
2 (X Σ_t G_t − Σ_t τ_t G_t) with G_t = τ_tᵀ τ_t / ‖τ_t‖², needs matrices ``[in, in]`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tqdm import tqdm

from benchmarks.agents.merges.fusion import Weights

RATE = 1e-5
"""Of Adam, fusion-bench's."""


def wudi_by_grams(base: Weights, agents: Mapping[str, Weights], iterations: int) -> Weights:
    """What :func:`benchmarks.agents.merges.fusion.wudi` computes, up to rounding.

    Matrices are optimised; everything else is the mean of the agents, as there.
    """
    merged = {}
    for name, start in tqdm(base.items(), desc="WUDI", unit="tensor", leave=False):
        vectors = [weights[name] - start for weights in agents.values()]
        if start.dim() == 2:
            merged[name] = start + _least_interfering(vectors, iterations)
        else:
            merged[name] = start + sum(vectors) / len(vectors)
    return merged


@torch.no_grad()
def _least_interfering(vectors: Sequence[torch.Tensor], iterations: int) -> torch.Tensor:
    grams = [vector.T @ vector / vector.square().sum() for vector in vectors]
    gram = torch.stack(grams).sum(dim=0)
    wanted = sum(vector @ own for vector, own in zip(vectors, grams, strict=True))
    found = torch.nn.Parameter(torch.stack(list(vectors)).sum(dim=0))
    optimizer = torch.optim.Adam([found], lr=RATE)
    for _ in range(iterations):
        found.grad = 2 * (found @ gram - wanted)
        optimizer.step()
    return found.detach()
