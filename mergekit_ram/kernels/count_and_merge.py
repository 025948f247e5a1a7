"""Count and merge one group of tensors: the arithmetic of RAM and RAM+, and nothing else.

The loops compiled by numba work on tensors of the CPU (:mod:`.numba_path`), torch operations on
all others and wherever the loops cannot (:mod:`.torch_path`, which is the place to read the
formula): the bytes are the same. Both go through a tensor chunk by chunk (:mod:`.chunks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from mergekit_ram.kernels import torch_path
from mergekit_ram.kernels.chunks import (
    Chunk,
    Chunks,
    KernelInputError,
    KernelOverflowError,
    check_finite,
)
from mergekit_ram.kernels.paths import on_best_path
from mergekit_ram.kernels.recipe import KernelParameterError, Recipe
from mergekit_ram.kernels.tally import OverlapCounts, Tally
from mergekit_ram.kernels.threads import at, shared_out

__all__ = [
    "KernelInputError",
    "KernelOverflowError",
    "KernelParameterError",
    "Merged",
    "OverlapCounts",
    "Recipe",
    "check_finite",
    "count",
    "count_by",
    "merge",
    "merge_and_count",
    "merge_by",
]


@dataclass(frozen=True)
class Merged:
    """One merged tensor, and the counts of its inputs."""

    tensor: torch.Tensor
    counts: OverlapCounts


def count(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    dtype: torch.dtype | None = None,
    chunk_size: int | None = None,
) -> OverlapCounts:
    """Count active parameters (|τ_t| > ε) by agent and overlap count.

    Args:
        base: the base's tensor, any shape, floating point.
        agents: the agents' tensors, shape and device of ``base``, any floating dtype.
        epsilon: activity threshold ε ≥ 0, in the unit of the weights.
        dtype: round the inputs to this dtype first; by default they count as stored.
        chunk_size: elements per step; no result depends on it.

    Returns:
        Counts in Python integers, so no tensor is too large for them.

    Raises:
        KernelInputError: an input holds NaN or infinity, or is of another shape or no float.
        KernelParameterError: ε is negative, NaN, infinite or beyond the dtype that is reckoned
            in, or ``chunk_size`` is not positive.
    """
    recipe = Recipe.of(
        len(agents), epsilon, None, None, 1.0, 1.0, dtype=dtype, chunk_size=chunk_size
    )
    return count_by(recipe, base, agents)


def count_by(recipe: Recipe, base: torch.Tensor, agents: Sequence[torch.Tensor]) -> OverlapCounts:
    """As :func:`count`, by the recipe of a merge; a number that it could not use is refused."""
    chunks = Chunks((base, *agents), recipe.dtype, recipe.chunk_size)
    recipe = recipe.rounded_to(chunks.compute_dtype)
    tally = Tally(len(agents))

    def run(path: ModuleType, workers: int) -> list[torch.Tensor]:
        def work(first: int, step: int) -> torch.Tensor:
            histograms = tally.histograms(chunks.device)
            count_chunk = path.counter(chunks, recipe.epsilon, tally.bits, histograms)
            for chunk in chunks.walk(first, step):
                with at(chunk):
                    count_chunk(chunk)
            return histograms.sum(dim=1)

        return shared_out(work, workers)

    found = on_best_path(chunks, chunks.input_dtype, run, by_shares=True)
    return tally.counts(base.numel(), found)


def merge(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    rescale: Sequence[float] | None = None,
    weight: Sequence[float] | None = None,
    scale: float = 1.0,
    overlap_power: float = 1.0,
    dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    chunk_size: int | None = None,
) -> torch.Tensor:
    """Merge one tensor: the table of RAM and RAM+, per parameter ``i``.

    With w_t the agent's weight, s the scale, T_i the active set and p the overlap power::

        |T_i| = 0    θ_pre
        |T_i| = 1    θ_pre + s λ_t w_t τ_t
        |T_i| ≥ 2    θ_pre + s Σ_{t ∈ T_i} w_t τ_t / |T_i|^p

    An untouched parameter equals the base's bit for bit, and a unique one the agent's where
    its factor s λ_t w_t, rounded to the dtype that is reckoned in, is 1, whatever the dtypes.

    Args:
        base: the base's tensor, any shape, floating point.
        agents: the agents' tensors, shape and device of ``base``, any floating dtype.
        epsilon: activity threshold ε ≥ 0, in the unit of the weights.
        rescale: λ_t per agent; by default 1 for all, which is RAM.
        weight: w_t per agent, not 0; by default 1 for all. It does not change who is active.
        scale: factor s on the merged task vector.
        overlap_power: p; 1 is the paper's mean, 0 the sum.
        dtype: round the inputs to this dtype first.
        out_dtype: of the result; by default the dtype that all inputs promote to.
        chunk_size: elements per step; no result depends on it.

    Returns:
        A new tensor of ``base``'s shape. The arithmetic is float32 (float64 where an input
        is float64) and is rounded once, to ``out_dtype``.

    Raises:
        KernelInputError: an input holds NaN or infinity, or is of another shape or no float.
        KernelOverflowError: the result is too large for ``out_dtype``.
        KernelParameterError: a number is NaN, infinite or beyond the dtype that is reckoned in,
            ε is negative, or ``chunk_size`` is not positive.
    """
    recipe = Recipe.of(
        len(agents),
        epsilon,
        rescale,
        weight,
        scale,
        overlap_power,
        dtype=dtype,
        out_dtype=out_dtype,
        chunk_size=chunk_size,
    )
    return merge_by(recipe, base, agents)


def merge_by(recipe: Recipe, base: torch.Tensor, agents: Sequence[torch.Tensor]) -> torch.Tensor:
    """As :func:`merge`, with its scalars and dtypes in one object."""
    return _merge(recipe, base, agents, Tally(0)).tensor


def merge_and_count(recipe: Recipe, base: torch.Tensor, agents: Sequence[torch.Tensor]) -> Merged:
    """Merge as :func:`merge` does and count as :func:`count` does, reading everything once."""
    return _merge(recipe, base, agents, Tally(len(agents)))


def _merge(
    recipe: Recipe, base: torch.Tensor, agents: Sequence[torch.Tensor], tally: Tally
) -> Merged:
    chunks = Chunks((base, *agents), recipe.dtype, recipe.chunk_size)
    recipe = recipe.rounded_to(chunks.compute_dtype)
    out_dtype = recipe.out_dtype or chunks.input_dtype
    out = torch.empty(base.shape, dtype=out_dtype, device=base.device)
    flat_out = out.view(-1)

    def run(path: ModuleType, workers: int) -> list[torch.Tensor]:
        def work(first: int, step: int) -> torch.Tensor:
            histograms = tally.histograms(chunks.device)
            merge_chunk = merger(path, chunks, recipe, out_dtype, tally.bits, histograms)
            for chunk in chunks.walk(first, step):
                with at(chunk):
                    merge_chunk(chunk, flat_out[chunk.start : chunk.stop])
            return histograms.sum(dim=1)

        return shared_out(work, workers)

    found = on_best_path(chunks, out_dtype, run, by_shares=True)
    return Merged(out, tally.counts(base.numel(), found))


def merger(
    path: ModuleType,
    chunks: Chunks,
    recipe: Recipe,
    out_dtype: torch.dtype,
    bits: int,
    histograms: torch.Tensor,
) -> Callable[[Chunk, torch.Tensor], None]:
    """What merges a chunk into a tensor of ``out_dtype``, or refuses it.

    Other arguments as in :func:`mergekit_ram.kernels.torch_path.merger`.
    """
    largest = min(torch.finfo(out_dtype).max, torch.finfo(chunks.compute_dtype).max)
    merge_chunk = path.merger(chunks, recipe, largest, bits, histograms)

    def merge(chunk: Chunk, target: torch.Tensor) -> None:
        if not merge_chunk(chunk, target):
            chunk.raise_if_not_finite()
            for piece in chunk.pieces():
                start = piece.start - chunk.start
                _check_fits(piece, recipe, target[start : start + piece.length])

    return merge


def _check_fits(chunk: Chunk, recipe: Recipe, target: torch.Tensor) -> None:
    """Refuse infinite results; ``target`` holds the rounded ones."""
    result, size = torch_path.merged(chunk, recipe)
    # NaN fails this comparison too.
    if not size < float("inf"):
        raise KernelOverflowError(f"the merged values overflow {result.dtype}")
    if not torch.isfinite(target).all():
        raise KernelOverflowError(
            f"a merged value of size {size:.6g} does not fit {target.dtype}, "
            f"whose largest is {torch.finfo(target.dtype).max:.6g}"
        )
