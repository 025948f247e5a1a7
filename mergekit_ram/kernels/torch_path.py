"""The paper's table in torch operations: every device, every float dtype.

A condition is an integer tensor, every bit set where it holds and none where it does not, and
selecting is ``(yes & where) | (no & ~where)`` on bit patterns. On a CPU ``torch.where`` takes
fifty times as long as such an operation, and a comparison ten times. Every operation rounds on
its own (no fused multiply-add), so results do not depend on the chunk size or the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from mergekit_ram.kernels.chunks import Chunk, Chunks
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.rounding import rounded


def counter(
    chunks: Chunks, epsilon: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk], None]:
    """What adds a chunk to the histograms of active agents.

    Args:
        chunks: that it will be called with.
        epsilon: ε, a number of the compute dtype.
        bits: agents per histogram.
        histograms: int64 ``[groups, lanes, cells]``, of which the first lane is used; the cell
            of a parameter is its overlap count times 2^bits, plus a bit for every active
            agent of the group.

    Returns:
        A function of a chunk, which raises KernelInputError where it holds NaN or infinity.
    """
    return functools.partial(_count_chunk, epsilon=epsilon, bits=bits, histograms=histograms)


def merger(
    chunks: Chunks, recipe: Recipe, largest: float, bits: int, histograms: torch.Tensor
) -> Callable[[Chunk, torch.Tensor], bool]:
    """What merges a chunk, and counts it on the way.

    Args:
        chunks: that it will be called with.
        recipe: in numbers of the compute dtype.
        largest: the largest value that needs no second look.
        bits: agents per histogram.
        histograms: as :func:`counter` takes them; nothing is counted where there are none.

    Returns:
        A function of a chunk and the tensor ``[length]`` that receives its merged values. It
        tells whether all inputs are finite and all merged values smaller than ``largest``.
    """

    def merge_chunk(chunk: Chunk, target: torch.Tensor) -> bool:
        cells = _Cells(chunk, bits, histograms)
        result = _merge_chunk(chunk, recipe, cells)
        cells.add_to(histograms)
        target.copy_(rounded(result, target.dtype))
        return _size(result, chunk) < largest

    return merge_chunk


def merged(chunk: Chunk, recipe: Recipe) -> tuple[torch.Tensor, float]:
    """A chunk's merged values, in scratch memory, and the size of the largest.

    NaN or infinity in an input passes through to that size.
    """
    nothing = torch.empty(0, 1, 0, dtype=torch.int64, device="cpu")
    result = _merge_chunk(chunk, recipe, _Cells(chunk, 1, nothing))
    return result, _size(result, chunk)


def _merge_chunk(chunk: Chunk, recipe: Recipe, cells: _Cells) -> torch.Tensor:
    base = chunk.load(0, chunk.buffer("base"))
    overlap = chunk.bits("overlap").zero_()
    shared, shared_bits = chunk.buffer("shared").zero_(), chunk.bits("shared")
    # θ_pre where no agent is active, and where one alone is, what it makes of it.
    lone, lone_bits = chunk.buffer("lone").copy_(base), chunk.bits("lone")
    value, value_bits = chunk.buffer("value"), chunk.bits("value")
    delta, delta_bits = chunk.buffer("delta"), chunk.bits("delta")
    is_active = _Activity(chunk, recipe.epsilon)
    for t, (factor, weight) in enumerate(zip(recipe.unique_factor, recipe.weight, strict=True)):
        chunk.load(t + 1, value)
        torch.sub(value, base, out=delta)
        active = is_active(delta)
        overlap.sub_(active)
        cells.note(t, active)
        if factor != 1.0:
            torch.mul(delta, factor, out=value).add_(base)
        _put(value_bits, into=lone_bits, where=active)
        if weight != 1.0:
            delta.mul_(weight)
        delta_bits.bitwise_and_(active)
        shared.add_(delta)
    cells.note_overlap(overlap)
    share(shared, value.copy_(overlap), recipe).add_(base)
    _put(shared_bits, into=lone_bits, where=_beyond(1, overlap, out=overlap))
    return lone


def _count_chunk(chunk: Chunk, epsilon: float, bits: int, histograms: torch.Tensor) -> None:
    base = chunk.load(0, chunk.buffer("base"))
    overlap = chunk.bits("overlap").zero_()
    cells = _Cells(chunk, bits, histograms)
    is_active = _Activity(chunk, epsilon)
    total = torch.zeros((), dtype=base.dtype, device=base.device)
    for t in range(chunk.agent_count):
        delta = chunk.load(t + 1, chunk.buffer("delta")).sub_(base)
        total.add_(delta.sum())
        active = is_active(delta)
        overlap.sub_(active)
        cells.note(t, active)
    # NaN and infinity survive every sum; a finite sum can overflow too, so look closer.
    if not torch.isfinite(total):
        chunk.raise_if_not_finite()
    cells.note_overlap(overlap)
    cells.add_to(histograms)


class _Cells:
    """Every parameter's place in the histograms, one row of integers per group of agents."""

    def __init__(self, chunk: Chunk, bits: int, histograms: torch.Tensor):
        self._bits = bits
        self._rows = [chunk.bits(f"cells {n}").zero_() for n in range(len(histograms))]

    def note(self, agent: int, active: torch.Tensor) -> None:
        if self._rows:
            # A condition is −1 or 0.
            self._rows[agent // self._bits].sub_(active, alpha=1 << (agent % self._bits))

    def note_overlap(self, overlap: torch.Tensor) -> None:
        for row in self._rows:
            row.add_(overlap, alpha=1 << self._bits)

    def add_to(self, histograms: torch.Tensor) -> None:
        for row, histogram in zip(self._rows, histograms[:, 0], strict=True):
            histogram.add_(torch.bincount(row, minlength=histogram.numel()))


class _Activity:
    """Where |τ| > ε, or is NaN. Floats ≥ 0 are in the order of their bit patterns."""

    def __init__(self, chunk: Chunk, epsilon: float):
        self._size, self._bits = chunk.buffer("active"), chunk.bits("active")
        threshold = torch.tensor(abs(epsilon), dtype=self._size.dtype, device="cpu")
        self._threshold = int(threshold.view(self._bits.dtype))

    def __call__(self, delta: torch.Tensor) -> torch.Tensor:
        torch.abs(delta, out=self._size)
        return _beyond(self._threshold, self._bits, out=self._bits)


def _beyond(limit: int, number: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Where an integer ≥ 0 is larger than ``limit``: the sign of their difference."""
    torch.sub(_scalar(limit, number.dtype), number, out=out)
    return out.bitwise_right_shift_(_scalar(8 * out.itemsize - 1, out.dtype))


@functools.lru_cache
def _scalar(value: int, dtype: torch.dtype) -> torch.Tensor:
    """torch takes a number as a tensor twice as fast."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def _put(new: torch.Tensor, *, into: torch.Tensor, where: torch.Tensor) -> None:
    """Replace the bits of some values, in place; those of ``new`` are used up."""
    into.bitwise_xor_(new.bitwise_xor_(into).bitwise_and_(where))


def _size(result: torch.Tensor, chunk: Chunk) -> float:
    """|·| of the largest, NaN where one is NaN."""
    return float(torch.abs(result, out=chunk.buffer("value")).amax())


def share(shared: torch.Tensor, overlap: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """s Σ w_t τ_t / |T_i|^p, in place; untouched parameters divide by one.

    Args:
        shared: Σ w_t τ_t over the active agents.
        overlap: |T_i| as floats.
        recipe: with s and p.
    """
    if recipe.overlap_power == 1.0:
        shared.div_(overlap.clamp(min=1.0))
    elif recipe.overlap_power != 0.0:
        # Integers to the power come from a table: ``pow`` rounds differently in the
        # vectorised part of a loop and in its remainder.
        table = recipe.divisors().to(device=overlap.device, dtype=overlap.dtype)
        shared.div_(table.index_select(0, overlap.to(torch.int32)))
    return shared if recipe.scale == 1.0 else shared.mul_(recipe.scale)
