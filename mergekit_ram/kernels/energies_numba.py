"""The sums of one chunk by compiled loops, where numba is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mergekit_ram.kernels.chunks import Chunk, Chunks
from mergekit_ram.kernels.numba_path import Strip, can_hold
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.sums import Array, Counts, Edges
from mergekit_ram.kernels.tally import Tally


def _loops() -> Any:
    """Imported with the first look, since it needs numba."""
    return importlib.import_module("mergekit_ram.kernels.energy_loops")


def observer(
    chunks: Chunks, recipe: Recipe, epsilons: Sequence[float]
) -> Callable[[Chunk, Edges], tuple[Counts, Array, Array]]:
    """As :func:`mergekit_ram.kernels.energies_torch.observer`."""
    strip, agents = Strip(chunks), chunks.count - 1
    tally = Tally(agents)
    loop = _loops().observe_block
    arguments = (
        np.array(epsilons, strip.number),
        strip.finite,
        np.array(recipe.weight, strip.number),
        recipe.divisors().numpy().astype(strip.number),
        strip.number(recipe.scale),
        tally.bits,
    )

    def observe(chunk: Chunk, edges: Edges) -> tuple[Counts, Array, Array]:
        histograms = tally.histograms(chunks.device, len(edges), len(epsilons))
        energies = np.zeros((len(edges), 4, agents))
        pairs = np.zeros((len(edges), 4, agents, agents))
        sums = histograms.numpy(), energies, pairs
        if not loop(*strip.of(chunk), edges.places, *arguments, *sums):
            chunk.raise_if_not_finite()
        return tally.degrees(histograms.sum(dim=-2)).numpy(), energies, pairs

    return observe


def comparer(
    chunks: Chunks, epsilon: float
) -> Callable[[Chunk, Edges, torch.Tensor, torch.Tensor], tuple[Array]]:
    """As :func:`mergekit_ram.kernels.energies_torch.comparer`."""
    strip, agents = Strip(chunks), chunks.count - 1
    outputs = Strip(chunks, 2)
    loop = _loops().compare_block
    threshold = strip.number(epsilon)

    def compare(
        chunk: Chunk, edges: Edges, merged: torch.Tensor, plain: torch.Tensor
    ) -> tuple[Array]:
        sums = np.zeros((len(edges), 2, agents))
        if not can_hold(merged.dtype, chunks):
            merged, plain = (each.to(chunks.compute_dtype) for each in (merged, plain))
        out = outputs.reading([merged, plain])
        loop(*strip.of(chunk), edges.places, threshold, *out, sums)
        return (sums,)

    return compare
