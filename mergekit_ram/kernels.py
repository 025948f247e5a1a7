"""Count and merge one group of tensors: the arithmetic of RAM and RAM+, and nothing else.

Both kernels walk over the tensors in chunks that fit the processor's caches and keep all
intermediate values in buffers that are allocated once per call, so their memory does not
grow with the tensors. Inputs are borrowed and never written to.

The inner loops hold no comparison and no ``torch.where``: on a CPU these run several times
slower than the vectorised float operations that say the same. An activity mask is a float
tensor of zeros and ones, and counts are sums of it, exact because a chunk has fewer than
2**24 elements. Every operation rounds on its own (no fused multiply-add), so results do not
depend on the chunk size or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

CPU_GRAIN = 32_768
"""torch gives an elementwise operation one thread for every so many elements, and runs a
smaller one without waiting for any other thread. A dozen float32 buffers of this length stay
in the L2 cache."""

PATTERN_BITS = 8
"""Agents whose activity one histogram tells apart; more agents share several histograms."""

ACCELERATOR_CHUNK = 8_388_608
"""Elements per chunk elsewhere: enough to fill a GPU, few enough to stay below 2**24."""


class KernelInputError(ValueError):
    """A tensor that no formula holds for; ``index`` says which input: 0 is the base, t agent t."""

    def __init__(self, index: int, problem: str):
        super().__init__(problem)
        self.index = index
        self.problem = problem


class KernelOverflowError(ValueError):
    """Finite inputs whose merge the output dtype cannot hold."""


@dataclass(frozen=True)
class OverlapCounts:
    """How many parameters of one tensor each agent changed, alone and with others.

    ``overlap_degree[t][k]`` is the number of active parameters of agent ``t`` with overlap
    count ``k + 1``: changed by it and ``k`` others.
    """

    numel: int
    overlap_degree: tuple[tuple[int, ...], ...]


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
        KernelInputError: an input holds NaN or infinity.
    """
    chunks = _Chunks((base, *agents), dtype, chunk_size)
    groups = [
        range(first, min(first + PATTERN_BITS, len(agents)))
        for first in range(0, len(agents), PATTERN_BITS)
    ]
    histograms = [_empty_histogram(len(agents), len(group), base.device) for group in groups]
    with torch.no_grad():
        for chunk in chunks:
            patterns, overlap = _activity(chunk, groups, epsilon)
            for pattern, group, histogram in zip(patterns, groups, histograms, strict=True):
                # Both numbers in one: overlap count · 2^bits + pattern, exact in float32.
                cell = torch.mul(overlap, 1 << len(group), out=chunk.buffer("delta")).add_(pattern)
                found = torch.bincount(cell.to(torch.int32), minlength=histogram.numel())
                histogram.add_(found.view_as(histogram))
    return OverlapCounts(base.numel(), _degrees(groups, histograms))


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
        KernelInputError: an input holds NaN or infinity.
        KernelOverflowError: the result is too large for ``out_dtype``.
    """
    tensors = (base, *agents)
    chunks = _Chunks(tensors, dtype, chunk_size)
    recipe = _Recipe.of(len(agents), epsilon, rescale, weight, scale, overlap_power)
    out = torch.empty(base.shape, dtype=out_dtype or chunks.input_dtype, device=base.device)
    flat_out = out.view(-1)
    with torch.no_grad():
        for chunk in chunks:
            result = _merge_chunk(chunk, recipe)
            size = torch.abs(result, out=chunk.buffer("size"))
            low, high = (float(bound) for bound in torch.aminmax(size))
            # NaN passes through both bounds, and fails this comparison.
            if not high < float("inf"):
                chunk.raise_if_not_finite()
                raise KernelOverflowError(f"the merged values overflow {chunks.compute_dtype}")
            if low == 0:
                result = _merge_chunk_selecting(chunk, recipe)
            target = flat_out[chunk.start : chunk.stop].copy_(result)
            if high >= torch.finfo(out.dtype).max and not torch.isfinite(target).all():
                raise KernelOverflowError(
                    f"a merged value of size {high:.6g} does not fit {out.dtype}, "
                    f"whose largest is {torch.finfo(out.dtype).max:.6g}"
                )
    return out


def check_finite(tensor: torch.Tensor, index: int = 0) -> None:
    """Refuse a tensor with NaN or infinity in it.

    Raises:
        KernelInputError: with ``index`` and the first such value.
    """
    # Only a sum that is not finite makes the search, and its full-size mask, worth it.
    if torch.isfinite(tensor.detach().sum(dtype=torch.float64)):
        return
    broken = ~torch.isfinite(tensor)
    raise KernelInputError(index, f"holds {float(tensor[broken][0])}")


@dataclass(frozen=True)
class _Recipe:
    """The scalars of one merge; ``unique_factor[t]`` is s λ_t w_t."""

    epsilon: float
    weight: tuple[float, ...]
    unique_factor: tuple[float, ...]
    scale: float
    overlap_power: float

    @classmethod
    def of(
        cls,
        agent_count: int,
        epsilon: float,
        rescale: Sequence[float] | None,
        weight: Sequence[float] | None,
        scale: float,
        overlap_power: float,
    ) -> _Recipe:
        rescale = [1.0] * agent_count if rescale is None else rescale
        weight = [1.0] * agent_count if weight is None else weight
        factors = tuple(scale * λ * w for λ, w in zip(rescale, weight, strict=True))
        return cls(epsilon, tuple(weight), factors, scale, overlap_power)


def _merge_chunk(chunk: _Chunk, recipe: _Recipe) -> torch.Tensor:
    """Merge by sums of masked values: exact but for the sign of a zero."""
    base = chunk.load(0, "base")
    overlap = chunk.buffer("overlap").zero_()
    shared = chunk.buffer("shared").zero_()
    unique = chunk.buffer("unique").zero_()
    for t, factor in enumerate(recipe.unique_factor, start=1):
        value = chunk.load(t, "agent")
        delta = torch.sub(value, base, out=chunk.buffer("delta"))
        mask = _active_mask(delta, recipe.epsilon, out=chunk.buffer("mask"), shrink=True)
        overlap.add_(mask)
        if factor != 1.0:
            value = torch.mul(delta, factor, out=chunk.buffer("agent")).add_(base)
        if recipe.weight[t - 1] != 1.0:
            delta.mul_(recipe.weight[t - 1])
        shared.add_(delta)
        # Where only this agent is active its term is the only one that is not zero. A product
        # by 0 or 1 is exact, so it does not matter whether this one multiply-add is fused.
        unique.addcmul_(mask, value)
    is_unique = _indicator(overlap, 1, out=chunk.buffer("mask"))
    unique.mul_(is_unique)
    result = _share(shared, overlap, recipe, chunk).add_(base)
    return result.mul_(is_unique.neg_().add_(1.0)).add_(unique)


def _merge_chunk_selecting(chunk: _Chunk, recipe: _Recipe) -> torch.Tensor:
    """The same merge by selection: slower, and right about the sign of a zero too."""
    base = chunk.load(0, "base")
    overlap = torch.zeros_like(base)
    shared = torch.zeros_like(base)
    lone = base.clone()
    for t, factor in enumerate(recipe.unique_factor, start=1):
        value = chunk.load(t, "agent")
        delta = value - base
        active = delta.abs() > recipe.epsilon
        overlap += active
        shared += torch.where(active, delta * recipe.weight[t - 1], 0.0)
        lone = torch.where(active, value if factor == 1.0 else delta * factor + base, lone)
    several = overlap >= 2
    return torch.where(several, _share(shared, overlap, recipe, chunk) + base, lone)


def _share(
    shared: torch.Tensor, overlap: torch.Tensor, recipe: _Recipe, chunk: _Chunk
) -> torch.Tensor:
    """s Σ w_t τ_t / |T_i|^p, in place; untouched parameters divide by one."""
    power = recipe.overlap_power
    if power != 0.0:
        # Integers to the power come from a table: ``pow`` rounds differently in the
        # vectorised part of a loop and in its remainder.
        divisor = torch.clamp(overlap, min=1.0, out=chunk.buffer("delta"))
        if power != 1.0:
            steps = torch.arange(len(recipe.weight) + 1, dtype=torch.float64).clamp(min=1.0)
            table = steps.pow(power).to(device=overlap.device, dtype=overlap.dtype)
            torch.index_select(table, 0, overlap.to(torch.int32), out=divisor)
        shared.div_(divisor)
    return shared if recipe.scale == 1.0 else shared.mul_(recipe.scale)


def _active_mask(
    delta: torch.Tensor, epsilon: float, *, out: torch.Tensor, shrink: bool = False
) -> torch.Tensor:
    """1 where |δ| > ε, else 0. ``shrink`` leaves in ``delta`` only the active values.

    ``hardshrink`` is strict, as ε is, and keeps NaN.
    """
    kept = torch.hardshrink(delta, epsilon, out=delta if shrink else out)
    return torch.sign(kept, out=out).abs_()


def _indicator(overlap: torch.Tensor, degree: int, *, out: torch.Tensor) -> torch.Tensor:
    """1 where the overlap count is ``degree``, else 0: 1 − min(|c − degree|, 1)."""
    return torch.sub(overlap, degree, out=out).abs_().clamp_(max=1.0).neg_().add_(1.0)


def _activity(
    chunk: _Chunk, groups: Sequence[range], epsilon: float
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Per group of agents the pattern of active ones, bit by bit, and the overlap count of all."""
    base = chunk.load(0, "base")
    overlap = chunk.buffer("overlap").zero_()
    total = torch.zeros((), dtype=base.dtype, device=base.device)
    patterns = []
    for number, group in enumerate(groups):
        pattern = chunk.buffer(f"pattern {number}").zero_()
        for agent in group:
            delta = chunk.load(agent + 1, "delta").sub_(base)
            total.add_(delta.sum())
            mask = _active_mask(delta, epsilon, out=chunk.buffer("mask"))
            overlap.add_(mask)
            pattern.mul_(2.0).add_(mask)
        patterns.append(pattern)
    # NaN and infinity survive every sum; a finite sum can overflow too, so look closer.
    if not torch.isfinite(total):
        chunk.raise_if_not_finite()
    return patterns, overlap


def _empty_histogram(agent_count: int, bits: int, device: torch.device) -> torch.Tensor:
    """Parameters by ``[overlap count, pattern of a group of agents]``."""
    return torch.zeros(agent_count + 1, 1 << bits, dtype=torch.int64, device=device)


def _degrees(
    groups: Sequence[range], histograms: Sequence[torch.Tensor]
) -> tuple[tuple[int, ...], ...]:
    """Active parameters per agent and overlap count ≥ 1, from the groups' histograms."""
    rows = []
    for group, histogram in zip(groups, histograms, strict=True):
        by_overlap = histogram[1:].cpu()
        for position in range(len(group)):
            # The first agent of a group has been shifted most, into the highest bit.
            bit = 1 << (len(group) - 1 - position)
            has_bit = (torch.arange(by_overlap.shape[1]) & bit) != 0
            rows.append(tuple(int(n) for n in by_overlap[:, has_bit].sum(dim=1)))
    return tuple(rows)


class _Chunk:
    """One stretch of every input, and the buffers that its arithmetic may use."""

    def __init__(self, owner: _Chunks, parts: Sequence[torch.Tensor], start: int):
        self._owner = owner
        self._parts = parts
        self.start = start
        self.stop = start + parts[0].numel()

    def buffer(self, name: str) -> torch.Tensor:
        """A named scratch tensor of this chunk's length; its old content is gone."""
        return self._owner.buffer(name)

    def load(self, index: int, name: str) -> torch.Tensor:
        """Input ``index`` in the compute dtype, copied: inputs are never written to."""
        part = self._parts[index]
        if part.dtype != self._owner.input_dtype:
            part = part.to(self._owner.input_dtype)
        return self.buffer(name).copy_(part)

    def raise_if_not_finite(self) -> None:
        for index, part in enumerate(self._parts):
            check_finite(part, index)
            # Rounding to a narrower dtype can make an infinity of a finite value.
            if not torch.isfinite(part.to(self._owner.input_dtype)).all():
                raise KernelInputError(
                    index, f"holds values that do not fit {self._owner.input_dtype}"
                )


class _Chunks:
    """Walks over equally shaped tensors in flat chunks that share one set of buffers."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
        chunk_size: int | None,
    ):
        # Detached, since a parameter that records gradients refuses buffers.
        self._tensors = [tensor.detach() for tensor in tensors]
        self.input_dtype = dtype or _promoted(tensors)
        is_double = self.input_dtype == torch.float64
        self.compute_dtype = torch.float64 if is_double else torch.float32
        self._size = chunk_size or _chunk_size(tensors[0].device)
        self._buffers: dict[str, torch.Tensor] = {}
        self._length = 0

    def __iter__(self) -> Iterator[_Chunk]:
        start = 0
        for parts in self._parts():
            self._length = parts[0].numel()
            if self._length == 0:
                continue
            yield _Chunk(self, parts, start)
            start += self._length

    def _parts(self) -> Iterator[tuple[torch.Tensor, ...]]:
        if all(tensor.is_contiguous() for tensor in self._tensors):
            flat = [tensor.view(-1) for tensor in self._tensors]
            yield from zip(*(torch.split(tensor, self._size) for tensor in flat), strict=True)
            return
        # Flattening a strided tensor copies it, so flatten a few rows at a time.
        rows, row_size = self._tensors[0].shape[0], self._tensors[0][0].numel()
        step = min(rows, max(1, self._size // max(1, row_size)))
        for row in range(0, rows, step):
            yield tuple(tensor[row : row + step].reshape(-1) for tensor in self._tensors)

    def buffer(self, name: str) -> torch.Tensor:
        """Scratch of the current chunk's length, the same memory for the same name."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() != self._length:
            device = self._tensors[0].device
            buffer = torch.empty(self._length, dtype=self.compute_dtype, device=device)
            self._buffers[name] = buffer
        return buffer


def _promoted(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _chunk_size(device: torch.device) -> int:
    """Elements per chunk, which on a CPU decides how many threads work on it.

    Half of torch's threads: every operation ends with all threads waiting for the slowest.
    With as many as there are processors, another busy process on the machine makes that wait
    a scheduler's time slice, hundreds of times the work. Two threads of one core gain little.
    """
    if device.type != "cpu":
        return ACCELERATOR_CHUNK
    threads = torch.get_num_threads() // 2
    return CPU_GRAIN * threads if threads > 1 else CPU_GRAIN - 64
