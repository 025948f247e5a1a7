"""Count and merge one group of tensors: the arithmetic of RAM and RAM+, and nothing else.

The tensors are cut into chunks that fit the processor's caches (:mod:`.chunks`). The loops
compiled by numba work on them where numba is installed and the tensors are on the CPU
(:mod:`.numba_path`), torch operations everywhere else (:mod:`.torch_path`): the bytes are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

import torch

from mergekit_ram.kernels import numba_path, torch_path
from mergekit_ram.kernels.chunks import SERIAL_CHUNK, Chunk, Chunks, KernelInputError, check_finite
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.strips import LANES

__all__ = [
    "KernelInputError",
    "KernelOverflowError",
    "Merged",
    "OverlapCounts",
    "check_finite",
    "count",
    "merge",
    "merge_and_count",
]

PATTERN_BITS = 8
"""Agents whose activity one histogram tells apart; more agents share several histograms."""

MAX_WORKERS = 4
"""Threads of one tensor's chunks. They meet at no barrier before the tensor is done, but share
Python's lock between two compiled loops, so that more of them gain little."""

CHUNKS_PER_WORKER = 4
"""Fewer are not worth a thread."""


T = TypeVar("T")


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


@dataclass(frozen=True)
class Merged:
    """One merged tensor, and the counts of its inputs."""

    tensor: torch.Tensor
    counts: OverlapCounts


class _Tally:
    """Histograms of which agents are active together, and the counts that follow from them.

    Args:
        agents: how many there are to count; of none nothing is counted.
    """

    def __init__(self, agents: int):
        self._agents = agents
        self.bits = max(1, min(PATTERN_BITS, agents))
        self._shape = (-(-agents // self.bits), LANES, (agents + 1) << self.bits)

    def histograms(self, device: torch.device) -> torch.Tensor:
        """Zeros, int64 ``[groups, lanes, cells]``: one group per ``bits`` agents."""
        return torch.zeros(self._shape, dtype=torch.int64, device=device)

    def counts(self, numel: int, found: Sequence[torch.Tensor]) -> OverlapCounts:
        """What all threads' histograms ``[groups, cells]`` say together."""
        total = sum(found, torch.zeros((), dtype=torch.int64)).cpu()
        return OverlapCounts(numel, _degrees(total, self._agents, self.bits))


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
    _check_epsilon(epsilon)
    chunks = Chunks((base, *agents), dtype, chunk_size)
    tally = _Tally(len(agents))
    backend = _backend(chunks, chunks.compute_dtype)

    def work(first: int, step: int) -> torch.Tensor:
        histograms = tally.histograms(chunks.device)
        count_chunk = backend.counter(chunks, epsilon, tally.bits, histograms)
        for chunk in chunks.walk(first, step):
            with _at(chunk):
                count_chunk(chunk)
        return histograms.sum(dim=1)

    return tally.counts(base.numel(), _shared_out(work, chunks, backend))


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
    recipe = Recipe.of(len(agents), epsilon, rescale, weight, scale, overlap_power)
    chunks = Chunks((base, *agents), dtype, chunk_size)
    return _merge(base, chunks, recipe, out_dtype, _Tally(0)).tensor


def merge_and_count(
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
) -> Merged:
    """Merge as :func:`merge` does and count as :func:`count` does, reading everything once."""
    recipe = Recipe.of(len(agents), epsilon, rescale, weight, scale, overlap_power)
    chunks = Chunks((base, *agents), dtype, chunk_size)
    return _merge(base, chunks, recipe, out_dtype, _Tally(len(agents)))


def _merge(
    base: torch.Tensor,
    chunks: Chunks,
    recipe: Recipe,
    out_dtype: torch.dtype | None,
    tally: _Tally,
) -> Merged:
    _check_epsilon(recipe.epsilon)
    out = torch.empty(base.shape, dtype=out_dtype or chunks.input_dtype, device=base.device)
    flat_out = out.view(-1)
    largest = min(torch.finfo(out.dtype).max, torch.finfo(chunks.compute_dtype).max)
    backend = _backend(chunks, out.dtype)

    def work(first: int, step: int) -> torch.Tensor:
        histograms = tally.histograms(chunks.device)
        merge_chunk = backend.merger(chunks, recipe, largest, tally.bits, histograms)
        for chunk in chunks.walk(first, step):
            target = flat_out[chunk.start : chunk.stop]
            with _at(chunk):
                if not merge_chunk(chunk, target):
                    _check_fits(chunk, recipe, target)
        return histograms.sum(dim=1)

    return Merged(out, tally.counts(base.numel(), _shared_out(work, chunks, backend)))


def _check_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon must be a finite number ≥ 0; got {epsilon}")


def _backend(chunks: Chunks, out_dtype: torch.dtype) -> ModuleType:
    """Where the loops are that suit these tensors, which also decides the chunks' size."""
    if chunks.device.type != "cpu" or not numba_path.available():
        return torch_path
    is_direct = numba_path.reads(chunks) and numba_path.can_hold(out_dtype, chunks)
    chunks.prefer_size(numba_path.CHUNK if is_direct else SERIAL_CHUNK)
    return numba_path


def _shared_out(work: Callable[[int, int], T], chunks: Chunks, backend: ModuleType) -> list[T]:
    """Call ``work(first, step)`` in as many threads as pay; together they see every chunk.

    Compiled loops run beside each other. Torch operations are so short that handing over
    Python's lock between them costs all that a second thread gains.
    """
    workers = 1
    if backend is numba_path:
        most = min(MAX_WORKERS, torch.get_num_threads())
        workers = max(1, min(most, len(chunks) // CHUNKS_PER_WORKER))

    def run(first: int) -> T | _Refused:
        try:
            # Whether gradients are recorded is each thread's own setting.
            with torch.no_grad():
                return work(first, workers)
        except _Refused as refused:
            return refused

    if workers == 1:
        results = [run(0)]
    else:
        with ThreadPoolExecutor(workers) as pool:
            results = list(pool.map(run, range(workers)))
    refusals = [result for result in results if isinstance(result, _Refused)]
    if refusals:
        # The first of the tensor, however many threads looked for it.
        raise min(refusals, key=lambda refused: refused.start).error
    return [result for result in results if not isinstance(result, _Refused)]


class _Refused(Exception):
    """An error of one chunk, on its way out of a thread."""

    def __init__(self, start: int, error: ValueError):
        super().__init__(start)
        self.start = start
        self.error = error


@contextmanager
def _at(chunk: Chunk) -> Iterator[None]:
    try:
        yield
    except (KernelInputError, KernelOverflowError) as error:
        raise _Refused(chunk.start, error) from None


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


def _degrees(histograms: torch.Tensor, agent_count: int, bits: int) -> tuple[tuple[int, ...], ...]:
    """Active parameters per agent and overlap count ≥ 1, from the groups' histograms."""
    by_overlap = histograms.view(-1, agent_count + 1, 1 << bits)[:, 1:]
    # [groups, overlap counts, patterns] times [patterns, agents of the group]
    found = (by_overlap @ _membership(bits)).transpose(1, 2).flatten(0, 1)
    return tuple(tuple(row) for row in found[:agent_count].tolist())


@functools.lru_cache
def _membership(bits: int) -> torch.Tensor:
    """Which agents of a group are in which pattern, int64 ``[patterns, bits]``."""
    return (torch.arange(1 << bits).unsqueeze(1) >> torch.arange(bits)) & 1
