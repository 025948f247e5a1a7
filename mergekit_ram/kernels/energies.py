"""Energies, angles and sign conflicts of task vectors: what inspecting computes beside counts.

Task vectors are taken as the merge takes them (float32, float64 for float64 inputs) and their
products summed in float64, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch

from mergekit_ram.kernels import torch_path
from mergekit_ram.kernels.chunks import Chunk, Chunks
from mergekit_ram.kernels.recipe import Recipe


@dataclass
class Measures:
    """Sums over the parameters of one tensor, float64; rows and columns are its N agents."""

    energy: torch.Tensor
    """``[N]`` E = Σ τ² over the active parameters."""
    unique_energy: torch.Tensor
    """``[N]`` U = Σ τ² over the unique ones."""
    shared_energy: torch.Tensor
    """``[N]`` S = Σ m · τ over the shared ones, m what the merge adds there."""
    mean_energy: torch.Tensor
    """``[N]`` Σ τ̄ · τ over the active ones, τ̄ the mean of all N task vectors."""
    both: torch.Tensor
    """``[N, N]`` parameters that both agents changed."""
    dot: torch.Tensor
    """``[N, N]`` Σ τ_a · τ_b over those."""
    square: torch.Tensor
    """``[N, N]`` Σ τ_a² over those."""
    agreement: torch.Tensor
    """``[N, N]`` how many of those move the same way, less how many do not."""

    @classmethod
    def zeros(cls, agents: int, device: torch.device) -> Measures:
        shapes = [(agents,)] * 4 + [(agents, agents)] * 4
        return cls(*(torch.zeros(s, dtype=torch.float64, device=device) for s in shapes))

    def cpu(self) -> Measures:
        return Measures(*(getattr(self, field.name).cpu() for field in fields(self)))


@torch.no_grad()
def measure(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    weight: Sequence[float],
    scale: float = 1.0,
    overlap_power: float = 1.0,
    dtype: torch.dtype | None = None,
    chunk_size: int | None = None,
) -> Measures:
    """Measure one tensor; arguments as in :func:`mergekit_ram.kernels.count_and_merge.merge`.

    Returns:
        The sums, on the CPU. NaN and infinity are not looked for; count first.
    """
    chunks = Chunks((base, *agents), dtype, chunk_size)
    recipe = Recipe.of(len(agents), epsilon, None, weight, scale, overlap_power)
    sums = Measures.zeros(len(agents), chunks.device)
    with _one_thread():
        for chunk in chunks.walk():
            _add_chunk(sums, chunk, recipe)
    return sums.cpu()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep products of a few rows in the calling thread.

    The libraries behind them wake all threads for each, and where another process is busy these
    wait for one another a hundred times longer than the product takes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _add_chunk(sums: Measures, chunk: Chunk, recipe: Recipe) -> None:
    raw = _deltas(chunk)
    delta = torch.hardshrink(raw, recipe.epsilon)
    sign = delta.sign()
    active = sign.abs()
    overlap = active.sum(dim=0)
    weights = torch.tensor(recipe.weight, dtype=delta.dtype, device=delta.device)
    share = torch_path.share((delta * weights[:, None]).sum(dim=0), overlap, recipe).double()

    mean = raw.mean(dim=0).double()
    # A chunk has fewer than 2**24 elements, so these are whole numbers even in float32.
    sums.both += active @ active.T
    sums.agreement += sign @ sign.T
    delta = delta.double()
    square = delta.square()
    sums.energy += square.sum(dim=1)
    sums.unique_energy += square @ (overlap == 1).double()
    sums.shared_energy += delta @ (share * (overlap >= 2))
    sums.mean_energy += delta @ mean
    sums.dot += delta @ delta.T
    sums.square += square @ active.T.double()


def _deltas(chunk: Chunk) -> torch.Tensor:
    """All task vectors ``[N, length]``, in scratch memory."""
    block = chunk.load_all()
    return block[1:].sub_(block[0])


@dataclass
class Realised:
    """What a merge's rounded output kept of λ, per agent, float64 ``[N]``."""

    step: torch.Tensor
    """Σ (out − base) · τ over the unique parameters."""
    changed: torch.Tensor
    """Unique parameters whose stored value differs from the one that λ = 1 gives."""


@torch.no_grad()
def realise(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    merged: torch.Tensor,
    plain: torch.Tensor,
    *,
    epsilon: float,
    dtype: torch.dtype | None = None,
    chunk_size: int | None = None,
) -> Realised:
    """Compare a merge with its inputs.

    Args:
        base: the base's tensor.
        agents: the agents' tensors.
        merged: what ``ram_plus`` makes of them, in the output dtype.
        plain: what it makes of them with every λ at 1.
        epsilon: ε of the merge.
        dtype: round the inputs to this dtype first, as the merge did.
        chunk_size: elements per step.
    """
    chunks = Chunks((base, *agents), dtype, chunk_size)
    sums = [torch.zeros(len(agents), dtype=torch.float64, device=chunks.device) for _ in range(2)]
    with _one_thread():
        for chunk in chunks.walk():
            delta = torch.hardshrink(_deltas(chunk), epsilon)
            active = delta.sign().abs()
            unique = active * (active.sum(dim=0) == 1)
            out = merged.view(-1)[chunk.start : chunk.stop]
            # Zeros of either sign are the same value.
            differs = (out != plain.view(-1)[chunk.start : chunk.stop]).to(unique.dtype)
            step = out.double() - chunk.load(0, chunk.buffer("base")).double()
            sums[0] += (unique * delta).double() @ step
            sums[1] += unique @ differs
    return Realised(*(total.cpu() for total in sums))
