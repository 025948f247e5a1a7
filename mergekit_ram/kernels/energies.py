"""Energies, angles and sign conflicts of task vectors: what inspecting computes beside counts.

Task energies are taken as the merge takes them (float32, float64 for float64 inputs) and their
products summed in float64. Every chunk's sums are kept apart and added up in the order of the
chunks, so that no result depends on the number of threads. The compiled loops do it where they
can (:mod:`.energies_numba`), torch operations elsewhere (:mod:`.energies_torch`): the counts are
the same, and the sums but for their own rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from mergekit_ram.kernels import count_and_merge as kernels
from mergekit_ram.kernels import energies_numba, energies_torch, numba_path
from mergekit_ram.kernels.chunks import Chunk, Chunks, Scratch
from mergekit_ram.kernels.paths import on_best_path
from mergekit_ram.kernels.recipe import Recipe, checked_epsilon, rounded_number
from mergekit_ram.kernels.sums import Array, Edges, Observed, Pieces
from mergekit_ram.kernels.tally import Tally
from mergekit_ram.kernels.threads import at, shared_out

Look = Callable[[Chunk, Edges], tuple[Any, ...]]


def observe(
    recipe: Recipe,
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    thresholds: Sequence[float] = (),
    numels: Sequence[int] | None = None,
) -> Observed:
    """See what there is to see in one tensor before λ is known.

    Args:
        recipe: of the merge; its λ is not asked for.
        base: the base's tensor.
        agents: the agents' tensors.
        thresholds: further ε to count at.
        numels: sizes of the pieces, consecutive elements; by default the tensor is one.

    Raises:
        KernelInputError: an input holds NaN or infinity, or is of another shape or no float.
        ValueError: ε is negative, NaN or infinite.
    """
    chunks = Chunks((base, *agents), recipe.dtype, recipe.chunk_size)
    recipe = recipe.rounded_to(chunks.compute_dtype)
    every = [
        rounded_number("epsilon", checked_epsilon(epsilon), chunks.compute_dtype)
        for epsilon in (recipe.epsilon, *thresholds)
    ]
    # The merge's own is among them as a rule, and need not be counted twice.
    epsilons = tuple(dict.fromkeys(every))
    pieces = Pieces(numels or (base.numel(),))
    n = len(agents)
    degree = np.zeros((len(pieces), len(epsilons), n, n), np.int64)
    energies, pairs = np.zeros((len(pieces), 4, n)), np.zeros((len(pieces), 4, n, n))
    _add_up(
        lambda path: _sums_of(path).observer(chunks, recipe, epsilons),
        chunks,
        chunks.input_dtype,
        pieces,
        (degree, energies, pairs),
    )
    asked = [epsilons.index(epsilon) for epsilon in every]
    return Observed(pieces.numels, degree[:, asked], energies, pairs)


def realise(
    recipe: Recipe,
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    numels: Sequence[int] | None = None,
) -> Array:
    """Merge one tensor, and see what its rounding leaves of λ; the result is not kept.

    Args:
        recipe: of the merge, with λ.
        base: the base's tensor.
        agents: the agents' tensors.
        numels: as :func:`observe` takes them.

    Returns:
        :data:`mergekit_ram.kernels.sums.REALISED`, ``[pieces, 2, agents]``.

    Raises:
        KernelInputError: an input holds NaN or infinity, or is of another shape or no float.
        KernelOverflowError: the result is too large for its dtype.
    """
    chunks = Chunks((base, *agents), recipe.dtype, recipe.chunk_size)
    pieces = Pieces(numels or (base.numel(),))
    out_dtype = recipe.out_dtype or chunks.input_dtype
    sums = np.zeros((len(pieces), 2, len(agents)))
    _add_up(
        lambda path: _merging(recipe, chunks, path, out_dtype),
        chunks,
        out_dtype,
        pieces,
        (sums,),
    )
    return sums


def _merging(recipe: Recipe, chunks: Chunks, path: ModuleType, out_dtype: torch.dtype) -> Look:
    """What merges a chunk with λ and without it, and compares both with the inputs."""
    scratch = Scratch(out_dtype, chunks.device)
    factors = tuple(recipe.scale * w for w in recipe.weight)
    plain = replace(recipe, rescale=(1.0,) * len(factors), unique_factor=factors)
    recipes = [each.rounded_to(chunks.compute_dtype) for each in (recipe, plain)]
    nothing = Tally(0)
    mergers = [
        kernels.merger(
            path, chunks, each, out_dtype, nothing.bits, nothing.histograms(chunks.device)
        )
        for each in recipes
    ]
    compare = _sums_of(path).comparer(chunks, recipes[0].epsilon)

    def look(chunk: Chunk, edges: Edges) -> tuple[Any, ...]:
        found = []
        for number, merge in enumerate(mergers):
            target = scratch.get(f"merged {number}", (chunk.length,))
            merge(chunk, target)
            found.append(target)
        return compare(chunk, edges, *found)  # type: ignore[no-any-return]

    return look


def _sums_of(path: ModuleType) -> ModuleType:
    return energies_numba if path is numba_path else energies_torch


def _add_up(
    make: Callable[[ModuleType], Look],
    chunks: Chunks,
    out_dtype: torch.dtype,
    pieces: Pieces,
    totals: tuple[Any, ...],
) -> None:
    """Add what is seen in every chunk to the totals of its pieces, in the order of the chunks."""

    def run(path: ModuleType, workers: int) -> list[list[tuple[int, int, tuple[Any, ...]]]]:
        def work(first: int, step: int) -> list[tuple[int, int, tuple[Any, ...]]]:
            look = make(path)
            found = []
            for chunk in chunks.walk(first, step):
                edges = pieces.within(chunk)
                with at(chunk):
                    found.append((chunk.start, edges.first, look(chunk, edges)))
            return found

        return shared_out(work, workers)

    seen = itertools.chain.from_iterable(on_best_path(chunks, out_dtype, run))
    for _, first, arrays in sorted(seen, key=lambda found: found[0]):
        for total, array in zip(totals, arrays, strict=True):
            total[first : first + len(array)] += array
