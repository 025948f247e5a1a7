"""The arithmetic of one chunk in torch operations: every device, every float dtype.

There is no comparison and no ``torch.where`` over a whole chunk: on a CPU these run several
times slower than the vectorised float operations that say the same. An activity mask is a
float tensor of zeros and ones, and counts are sums of it, exact because a chunk has fewer
than 2**24 elements. Every operation rounds on its own (no fused multiply-add), so results do
not depend on the chunk size or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from mergekit_ram.kernels.chunks import Chunk, Chunks
from mergekit_ram.kernels.recipe import Recipe


def counter(
    chunks: Chunks, epsilon: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk], None]:
    """What adds a chunk to the histograms of active agents.

    Args:
        chunks: that it will be called with.
        epsilon: ε.
        bits: agents per histogram.
        histograms: int64 ``[groups, lanes, cells]``, of which the first lane is used; the cell
            of a parameter is its overlap count times 2^bits, plus a bit for every active
            agent of the group.

    Returns:
        A function of a chunk, which raises KernelInputError where it holds NaN or infinity.
    """
    return partial(_count_chunk, epsilon=epsilon, bits=bits, histograms=histograms)


def merger(
    chunks: Chunks, recipe: Recipe, largest: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk, torch.Tensor], bool]:
    """What merges a chunk, and counts it on the way.

    Args:
        chunks: that it will be called with.
        recipe: the scalars.
        largest: the largest value that needs no second look.
        bits: agents per histogram.
        histograms: as :func:`counter` takes them; nothing is counted where there are none.

    Returns:
        A function of a chunk and the tensor ``[length]`` that receives its merged values. It
        tells whether all inputs are finite and all merged values smaller than ``largest``.
    """

    def merge_chunk(chunk: Chunk, target: torch.Tensor) -> bool:
        cells = [chunk.buffer(f"cells {group}").zero_() for group in range(len(histograms))]
        result, high = merged(chunk, recipe, bits, cells)
        target.copy_(result)
        _add_cells(cells, histograms)
        return high < largest

    return merge_chunk


def merged(
    chunk: Chunk, recipe: Recipe, bits: int = 1, cells: Sequence[torch.Tensor] = ()
) -> tuple[torch.Tensor, float]:
    """A chunk's merged values, in scratch memory, and the size of the largest.

    NaN or infinity in an input passes through to that size. ``cells`` are zeros, and become
    every parameter's place in the histograms.
    """
    result = _merge_masked(chunk, recipe, bits, cells)
    size = torch.abs(result, out=chunk.buffer("size"))
    low, high = (float(bound) for bound in torch.aminmax(size))
    if low == 0:
        _repair_zeros(result, chunk, recipe)
    return result, high


def _count_chunk(chunk: Chunk, epsilon: float, bits: int, histograms: torch.Tensor) -> None:
    base = chunk.load(0, chunk.buffer("base"))
    cells = [chunk.buffer(f"cells {group}").zero_() for group in range(len(histograms))]
    total = torch.zeros((), dtype=base.dtype, device=base.device)
    for t in range(chunk.agent_count):
        delta = chunk.load(t + 1, chunk.buffer("delta")).sub_(base)
        total.add_(delta.sum())
        # Strict, as ε is.
        torch.hardshrink(delta, epsilon, out=delta)
        sign = torch.sign(delta, out=chunk.buffer("sign"))
        for group, cell in enumerate(cells):
            bit = 1 << (t % bits) if t // bits == group else 0
            cell.addcmul_(sign, sign, value=(1 << bits) + bit)
    # NaN and infinity survive every sum; a finite sum can overflow too, so look closer.
    if not torch.isfinite(total):
        chunk.raise_if_not_finite()
    _add_cells(cells, histograms)


def _add_cells(cells: Sequence[torch.Tensor], histograms: torch.Tensor) -> None:
    for cell, histogram in zip(cells, histograms[:, 0], strict=True):
        histogram.add_(torch.bincount(cell.to(torch.int32), minlength=histogram.numel()))


def _merge_masked(
    chunk: Chunk, recipe: Recipe, bits: int, cells: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Merge by sums of masked values: exact but for the sign of a zero."""
    base = chunk.load(0, chunk.buffer("base"))
    overlap = chunk.buffer("overlap").zero_()
    shared = chunk.buffer("shared").zero_()
    unique = chunk.buffer("unique").zero_()
    for t, factor in enumerate(recipe.unique_factor, start=1):
        value = chunk.load(t, chunk.buffer("agent"))
        delta = torch.sub(value, base, out=chunk.buffer("delta"))
        # From here on the delta is zero where it is not active.
        torch.hardshrink(delta, recipe.epsilon, out=delta)
        mask = torch.sign(delta, out=chunk.buffer("mask")).abs_()
        overlap.add_(mask)
        if (t - 1) // bits < len(cells):
            cells[(t - 1) // bits].add_(mask, alpha=1 << ((t - 1) % bits))
        if factor != 1.0:
            value = torch.mul(delta, factor, out=chunk.buffer("agent")).add_(base)
        if recipe.weight[t - 1] != 1.0:
            delta.mul_(recipe.weight[t - 1])
        shared.add_(delta)
        # Where only this agent is active its term is the only one that is not zero. A product
        # by 0 or 1 is exact, so it does not matter whether this one multiply-add is fused.
        unique.addcmul_(mask, value)
    for cell in cells:
        cell.add_(overlap, alpha=1 << bits)
    is_unique = _indicator(overlap, 1, out=chunk.buffer("mask"))
    unique.mul_(is_unique)
    result = share(shared, overlap, recipe).add_(base)
    return result.mul_(is_unique.neg_().add_(1.0)).add_(unique)


def _repair_zeros(result: torch.Tensor, chunk: Chunk, recipe: Recipe) -> None:
    """Give zeros the sign that merging by selection gives them, in place."""
    zeros = (result == 0).nonzero().squeeze(1)
    scratch = chunk.buffer("agent")
    values = [
        chunk.load(index, scratch).index_select(0, zeros) for index in range(chunk.agent_count + 1)
    ]
    result[zeros] = _merge_selecting(values[0], values[1:], recipe)


def _merge_selecting(
    base: torch.Tensor, agents: Sequence[torch.Tensor], recipe: Recipe
) -> torch.Tensor:
    """The same merge by selection: slower, and right about the sign of a zero too."""
    overlap = torch.zeros_like(base)
    shared = torch.zeros_like(base)
    lone = base.clone()
    for value, factor, weight in zip(agents, recipe.unique_factor, recipe.weight, strict=True):
        delta = value - base
        active = delta.abs() > recipe.epsilon
        overlap += active
        shared += torch.where(active, delta * weight, 0.0)
        lone = torch.where(active, value if factor == 1.0 else delta * factor + base, lone)
    return torch.where(overlap >= 2, share(shared, overlap, recipe) + base, lone)


def share(shared: torch.Tensor, overlap: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """s Σ w_t τ_t / |T_i|^p, in place; untouched parameters divide by one."""
    if recipe.overlap_power == 1.0:
        shared.div_(overlap.clamp(min=1.0))
    elif recipe.overlap_power != 0.0:
        # Integers to the power come from a table: ``pow`` rounds differently in the
        # vectorised part of a loop and in its remainder.
        table = recipe.divisors().to(device=overlap.device, dtype=overlap.dtype)
        shared.div_(table.index_select(0, overlap.to(torch.int32)))
    return shared if recipe.scale == 1.0 else shared.mul_(recipe.scale)


def _indicator(overlap: torch.Tensor, degree: int, *, out: torch.Tensor) -> torch.Tensor:
    """1 where the overlap count is ``degree``, else 0: 1 − min(|c − degree|, 1)."""
    return torch.sub(overlap, degree, out=out).abs_().clamp_(max=1.0).neg_().add_(1.0)
