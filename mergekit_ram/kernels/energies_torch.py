"""The sums of one chunk in torch operations, for every device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from mergekit_ram.kernels.chunks import Chunk, Chunks
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.sums import Array, Counts, Edges
from mergekit_ram.kernels.threads import one_thread


def observer(
    chunks: Chunks, recipe: Recipe, epsilons: Sequence[float]
) -> Callable[[Chunk, Edges], tuple[Counts, Array, Array]]:
    """What sees everything in a chunk that can be seen before λ is known.

    Args:
        chunks: that it will be called with.
        recipe: of the merge, whose λ is not asked for.
        epsilons: to count at; the first one is the merge's own.

    Returns:
        A function of a chunk and its pieces. It returns ``degree``, ``energies`` and ``pairs`` as
        in :class:`mergekit_ram.kernels.sums.Observed`, and raises KernelInputError where the chunk
        holds NaN or infinity.
    """

    def observe(chunk: Chunk, edges: Edges) -> tuple[Counts, Array, Array]:
        deltas = _deltas(chunk)
        # NaN and infinity survive every sum; a finite sum can overflow too, so look closer.
        if not torch.isfinite(deltas.sum()):
            chunk.raise_if_not_finite()
        pieces = [deltas[:, start:stop] for start, stop in itertools.pairwise(edges.places)]
        with one_thread():
            degree = [torch.stack([_degree(piece, e) for e in epsilons]) for piece in pieces]
            sums = [_sums(piece, recipe) for piece in pieces]
        energies, pairs = (torch.stack(column) for column in zip(*sums, strict=True))
        return torch.stack(degree).cpu().numpy(), energies.cpu().numpy(), pairs.cpu().numpy()

    return observe


def comparer(
    chunks: Chunks, epsilon: float
) -> Callable[[Chunk, Edges, torch.Tensor, torch.Tensor], tuple[Array]]:
    """What compares a merge with its inputs.

    Args:
        chunks: that it will be called with.
        epsilon: ε of the merge.

    Returns:
        A function of a chunk, its pieces, its merged values as rounded, and what they are with
        every λ at 1. It returns :data:`mergekit_ram.kernels.sums.REALISED`, ``[pieces, 2, N]``.
    """

    def compare(
        chunk: Chunk, edges: Edges, merged: torch.Tensor, plain: torch.Tensor
    ) -> tuple[Array]:
        delta = torch.hardshrink(_deltas(chunk), epsilon)
        active = delta.sign().abs()
        unique = active * (active.sum(dim=0) == 1)
        step = merged.double() - chunk.load(0, chunk.buffer("base")).double()
        # Zeros of either sign are the same value.
        products = (unique * delta).double() * step, (unique * (merged != plain)).double()
        sums = [
            torch.stack([product[:, start:stop].sum(dim=1) for product in products])
            for start, stop in itertools.pairwise(edges.places)
        ]
        return (torch.stack(sums).cpu().numpy(),)

    return compare


def _deltas(chunk: Chunk) -> torch.Tensor:
    """All task vectors ``[N, length]``, in scratch memory."""
    block = chunk.load_all()
    return block[1:].sub_(block[0])


def _degree(deltas: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Active parameters by agent and overlap count ≥ 1, int64 ``[N, N]``."""
    agents = len(deltas)
    active = torch.hardshrink(deltas, epsilon) != 0
    overlap = active.sum(dim=0)
    rows = [torch.bincount(overlap[own], minlength=agents + 1)[1:] for own in active]
    return torch.stack(rows) if rows else overlap.new_zeros(0, 0)


def _sums(deltas: torch.Tensor, recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    """The energies ``[4, N]`` and pairs ``[4, N, N]`` of one piece."""
    delta = torch.hardshrink(deltas, recipe.epsilon)
    sign = delta.sign()
    active = sign.abs()
    overlap = active.sum(dim=0)
    mean, shared = torch.zeros_like(overlap), torch.zeros_like(overlap)
    # One after the other, as the merge adds them up.
    for raw, own, weight in zip(deltas, delta, recipe.weight, strict=True):
        mean += raw
        shared += own * weight
    mean = (mean / max(1, len(deltas))).double()
    divisors = recipe.divisors().to(device=overlap.device, dtype=overlap.dtype)
    share = (shared / divisors[overlap.int()] * recipe.scale).double()
    delta = delta.double()
    square = delta.square()
    energies = (
        square.sum(dim=1),
        square @ (overlap == 1).double(),
        delta @ (share * (overlap >= 2)),
        delta @ mean,
    )
    # A chunk has fewer than 2**24 elements, so these are whole numbers even in float32.
    both, agreement = (active @ active.T).double(), (sign @ sign.T).double()
    pairs = (both, delta @ delta.T, square @ active.T.double(), agreement)
    return torch.stack(energies), torch.stack([pair.fill_diagonal_(0) for pair in pairs])
