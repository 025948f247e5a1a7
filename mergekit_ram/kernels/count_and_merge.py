"""Count and merge one group of tensors: the arithmetic of RAM and RAM+, and nothing else.

The tensors are cut into chunks that fit the processor's caches (:mod:`.chunks`). The loops
compiled by numba work on them where numba is installed and the tensors are on the CPU
(:mod:`.numba_path`), torch operations everywhere else (:mod:`.torch_path`): the bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from mergekit_ram.kernels import numba_path, torch_path
from mergekit_ram.kernels.chunks import (
    SERIAL_CHUNK,
    Chunk,
    Chunks,
    KernelInputError,
    KernelOverflowError,
    check_finite,
)
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.tally import OverlapCounts, Tally
from mergekit_ram.kernels.threads import at, shared_out, workers_for

__all__ = [
    "KernelInputError",
    "KernelOverflowError",
    "Merged",
    "OverlapCounts",
    "Recipe",
    "check_finite",
    "count",
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
        ValueError: ε is negative, NaN or infinite.
    """
    check_epsilon(epsilon)
    chunks = Chunks((base, *agents), dtype, chunk_size)
    tally = Tally(len(agents))
    backend = backend_for(chunks, chunks.compute_dtype)

    def work(first: int, step: int) -> torch.Tensor:
        histograms = tally.histograms(chunks.device)
        count_chunk = backend.counter(chunks, epsilon, tally.bits, histograms)
        for chunk in chunks.walk(first, step):
            with at(chunk):
                count_chunk(chunk)
        return histograms.sum(dim=1)

    return tally.counts(base.numel(), shared_out(work, workers(backend, chunks)))


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

    An untouched parameter equals the base's bit for bit, and a unique one whose factor
    s λ_t w_t is 1 the agent's, whatever the dtypes.

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
        ValueError: ε is negative, NaN or infinite.
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
    check_epsilon(recipe.epsilon)
    chunks = Chunks((base, *agents), recipe.dtype, recipe.chunk_size)
    out_dtype = recipe.out_dtype or chunks.input_dtype
    out = torch.empty(base.shape, dtype=out_dtype, device=base.device)
    flat_out = out.view(-1)
    backend = backend_for(chunks, out.dtype)

    def work(first: int, step: int) -> torch.Tensor:
        histograms = tally.histograms(chunks.device)
        merge_chunk = merger(backend, chunks, recipe, out.dtype, tally.bits, histograms)
        for chunk in chunks.walk(first, step):
            with at(chunk):
                merge_chunk(chunk, flat_out[chunk.start : chunk.stop])
        return histograms.sum(dim=1)

    found = shared_out(work, workers(backend, chunks))
    return Merged(out, tally.counts(base.numel(), found))


def merger(
    backend: ModuleType,
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
    merge_chunk = backend.merger(chunks, recipe, largest, bits, histograms)

    def merge(chunk: Chunk, target: torch.Tensor) -> None:
        if not merge_chunk(chunk, target):
            _check_fits(chunk, recipe, target)

    return merge


def check_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon must be a finite number ≥ 0; got {epsilon}")


def backend_for(chunks: Chunks, out_dtype: torch.dtype) -> ModuleType:
    """Where the loops are that suit these tensors, which also decides the chunks' size."""
    if chunks.device.type != "cpu" or not numba_path.available():
        return torch_path
    is_direct = numba_path.reads(chunks) and numba_path.can_hold(out_dtype, chunks)
    chunks.prefer_size(numba_path.CHUNK if is_direct else SERIAL_CHUNK)
    return numba_path


def workers(backend: ModuleType, chunks: Chunks) -> int:
    """Compiled loops run beside each other. Torch operations are so short that handing over
    Python's lock between them costs all that a second thread gains."""
    return workers_for(chunks) if backend is numba_path else 1


def _check_fits(chunk: Chunk, recipe: Recipe, target: torch.Tensor) -> None:
    """Refuse broken inputs and infinite results; ``target`` holds the rounded ones."""
    chunk.raise_if_not_finite()
    result, size = torch_path.merged(chunk, recipe)
    # NaN fails this comparison too.
    if not size < float("inf"):
        raise KernelOverflowError(f"the merged values overflow {result.dtype}")
    if not torch.isfinite(target).all():
        raise KernelOverflowError(
            f"a merged value of size {size:.6g} does not fit {target.dtype}, "
            f"whose largest is {torch.finfo(target.dtype).max:.6g}"
        )
