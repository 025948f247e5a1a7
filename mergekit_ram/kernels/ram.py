"""Count and merge one tensor of a base and agents: the arithmetic of RAM and RAM+.

On the CPU loops compiled by numba do it (:mod:`.loops`), elsewhere and wherever they cannot torch
operations (:mod:`.plain`): the bytes are the same.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from mergekit_ram.kernels import plain
from mergekit_ram.kernels.blocks import REFUSALS, Inputs, KernelOverflowError, store, walk
from mergekit_ram.kernels.recipe import Numbers, Recipe
from mergekit_ram.switches import is_set
from mergekit_ram.text import one_line, visible

LOG = logging.getLogger("mergekit_ram")

DISABLE_VARIABLE = "MERGEKIT_RAM_NATIVE"
"""Set to 0, false or no in the environment, it leaves the arithmetic to torch."""

TORCH_BLOCK = 32_768
"""Elements of one input in a block where torch computes on the CPU, with many results at once."""

MOST_AGENTS = 255
"""That the loops count in bytes."""

T = TypeVar("T")
Call = Callable[..., None]
"""Calls a function of :mod:`.plain` or :mod:`.loops` by its name."""


class _Loops:
    """The module with the compiled loops, or why there is none."""

    def __init__(self) -> None:
        self.module: Any = None
        self.problem: str | None = None
        self._lock = threading.Lock()
        try:
            numba = importlib.import_module("numba")
            if numba.config.DISABLE_JIT:
                self.give_up("compilation is switched off (NUMBA_DISABLE_JIT)")
            else:
                self.module = importlib.import_module("mergekit_ram.kernels.loops")
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            self.give_up(f"numba cannot be imported ({visible(one_line(error))})")

    def give_up(self, problem: str) -> None:
        """Leave the arithmetic to torch from now on, and say so once."""
        with self._lock:
            if self.problem is None:
                self.problem = problem
                LOG.warning(
                    "merging on the CPU in torch, which takes many times as long as the compiled "
                    "loops: %s; the results are the same",
                    problem,
                )


class _Calls:
    """Calls the loops, and remembers whether all that they met is finite."""

    are_finite = True

    def __call__(self, name: str, *arguments: Any) -> None:
        """Tensors share their memory with the loop; numpy has no bfloat16."""
        found = getattr(_loops().module, name)(*map(_shared, arguments))
        self.are_finite = self.are_finite and math.isfinite(found)


def _shared(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        is_bfloat16 = argument.dtype == torch.bfloat16
        return (argument.view(torch.uint16) if is_bfloat16 else argument).numpy()
    return argument


@functools.lru_cache(maxsize=1)
def _loops() -> _Loops:
    """Found once in a process, with the first merge."""
    return _Loops()


def available() -> bool:
    """Whether the loops are used: not switched off, and nothing has failed so far."""
    return not _is_switched_off() and _loops().problem is None


def why_not() -> str | None:
    """Why torch does the arithmetic on CPUs in this process; None where the compiled loops do.

    Tries the loops on a few numbers, which may take the seconds of a compilation.
    """
    if _is_switched_off():
        return f"switched off ({DISABLE_VARIABLE}={os.environ[DISABLE_VARIABLE]})"
    if available():
        few = torch.zeros(1, device="cpu")
        count(few, [few], epsilon=0.0)
    return _loops().problem


def _is_switched_off() -> bool:
    return os.environ.get(DISABLE_VARIABLE, "").strip() != "" and not is_set(DISABLE_VARIABLE)


def _call_plain(name: str, *arguments: Any) -> None:
    getattr(plain, name)(*arguments)


def over_blocks(
    inputs: Inputs, work: Callable[[Call, torch.Tensor, slice], T], size: int | None = None
) -> list[T]:
    """Call ``work`` with every block, its place, and what it calls the arithmetic by.

    The loops are numba's, and may fail for any reason: in a cache that is full, cut or not to
    be written to, in a library that is missing. A merge continues then, from this tensor's start:
    ``work`` keeps nothing of an earlier call.
    """

    def by_torch(block: torch.Tensor, place: slice) -> T:
        # NaN and infinity survive every sum; a finite sum can overflow too, so look closer.
        if not math.isfinite(float(block.sum())):
            inputs.check_finite(place)
        return work(_call_plain, block, place)

    def by_loops(block: torch.Tensor, place: slice) -> T:
        calls = _Calls()
        with suppress(KernelOverflowError):
            found = work(calls, block, place)
            if calls.are_finite:
                return found
        # Torch says what is wrong, if anything is.
        return by_torch(
            inputs.load(place, inputs.room(block.shape[1], inputs.compute_dtype)), place
        )

    is_cpu, agents = inputs.device.type == "cpu", len(inputs.tensors) - 1
    if is_cpu and 0 < agents <= MOST_AGENTS and available():
        try:
            return walk(inputs, by_loops, size, inputs.loop_dtype)
        except (*REFUSALS, KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:
            _loops().give_up(f"numba failed ({visible(one_line(error))})")
    return walk(inputs, by_torch, size or (TORCH_BLOCK if is_cpu else None))


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


def count(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    dtype: torch.dtype | None = None,
    chunk_size: int | None = None,
) -> OverlapCounts:
    """Count active parameters (|τ_t| > ε) by agent and overlap count.

    Arguments and errors are those of :func:`merge`; by default values count as they are stored.

    Returns:
        Counts in Python integers, so no tensor is too large for them.
    """
    recipe = Recipe.of(
        len(agents), epsilon, None, None, 1.0, 1.0, dtype=dtype, chunk_size=chunk_size
    )
    return merge_and_count(recipe, base, agents, merges=False).counts


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
    its factor s λ_t w_t, rounded to the dtype that is computed in, is 1.

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
        KernelParameterError: a number is NaN, infinite or beyond the dtype that is computed in,
            ε is negative, or ``chunk_size`` is not positive.
    """
    numbers = epsilon, rescale, weight, scale, overlap_power
    recipe = Recipe.of(
        len(agents), *numbers, dtype=dtype, out_dtype=out_dtype, chunk_size=chunk_size
    )
    return merge_and_count(recipe, base, agents, counts=False).tensor


def merge_and_count(
    recipe: Recipe,
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    merges: bool = True,
    counts: bool = True,
) -> Merged:
    """Merge as :func:`merge` does and count as :func:`count` does, reading everything once.

    Without ``merges`` the tensor is empty, without ``counts`` there are none.
    """
    inputs = Inputs((base, *agents), recipe.dtype)
    numbers = recipe.numbers(inputs.compute_dtype)
    shape = base.shape if merges else (0,)
    out = torch.empty(shape, dtype=recipe.out_dtype or inputs.input_dtype, device=inputs.device)
    counted = len(agents) if counts else 0

    def work(call: Call, block: torch.Tensor, place: slice) -> list[list[int]]:
        degree = torch.zeros(counted, counted, dtype=torch.int64, device=block.device)
        merge_block(call, block, numbers, out.view(-1)[place], degree)
        # A tensor that is kept would hold apart the memory that blocks leave free.
        return degree.tolist()

    found = [[[0] * counted] * counted, *over_blocks(inputs, work, recipe.chunk_size)]
    degree = (map(sum, zip(*rows, strict=True)) for rows in zip(*found, strict=True))
    return Merged(out, OverlapCounts(inputs.numel, tuple(map(tuple, degree))))


def merge_block(
    call: Call, block: torch.Tensor, numbers: Numbers, target: torch.Tensor, degree: torch.Tensor
) -> None:
    """Merge and count a block: as :func:`.plain.run`, whatever the dtype of ``target``."""
    is_double = numbers.factor.dtype == np.float64
    written = (torch.float64,) if is_double else (torch.float32, torch.bfloat16)
    is_direct = call is _call_plain or target.dtype in written
    out = target if is_direct else target.new_empty(len(target), dtype=written[0])
    call("run", block, numbers, out, degree)
    if out is not target and len(target):
        store(out, target)
