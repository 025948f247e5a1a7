"""Merge one tensor by RAM over directions, or measure that merge: every matrix in its own unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from mergekit_ram.kernels.blocks import Inputs, rounded, store
from mergekit_ram.kernels.energies import Array
from mergekit_ram.kernels.matrices import Layout, Updates, power_of_two, updates_of
from mergekit_ram.kernels.solutions import Anchored, KernelRidgeError, first_walk

RIDGE = 0.3

EXACT = "highest"
"""torch's name of products that are not shortened."""

_LAYOUT = Layout()


@dataclass(frozen=True)
class Solved:
    """One matrix after the first walk, ready for the second."""

    numbers: tuple[int, ...]
    """Which of the given agents changed it."""
    solution: Anchored
    unit: float
    """What the solution gives is X times this power of two."""
    gram_products: torch.Tensor | None = None
    """Σ G_a ∘ G_b of every two of these agents, float64 ``[N, N]``, where asked for."""


@torch.no_grad()
def merge(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    ridge: float = RIDGE,
    weight: Sequence[float] | None = None,
    scale: float = 1.0,
    layout: Layout = _LAYOUT,
    dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    block: int | None = None,
) -> torch.Tensor:
    """Merge one tensor over directions of its input: base + s X.

    Args:
        base: the base's tensor, any shape, floating point.
        agents: the agents' tensors, shape and device of ``base``, any floating dtype.
        epsilon: ε ≥ 0; smaller changes do not count.
        ridge: μ > 0.
        weight: w_t per agent, not 0; by default 1 for all.
        scale: s.
        layout: where the matrices are; by default ``[out, in]``, or a convolution's kernel.
        dtype: round the inputs to this dtype first.
        out_dtype: of the result; by default the dtype that all inputs promote to.
        block: elements of one agent per step.

    Returns:
        A new tensor of ``base``'s shape. The arithmetic is float32 (float64 where an input is
        float64) and is rounded once, to ``out_dtype``. Its bytes are the same for the same
        library, device and number of threads. A matrix that no agent changed is the base's.

    Raises:
        KernelInputError: an input holds NaN or infinity, or is of another shape or no float.
        KernelOverflowError: the result is too large for ``out_dtype``.
        KernelRidgeError: ``ridge`` is too small to compute with.
        ValueError: ε or ridge is out of range.
    """
    _check_options(epsilon, ridge)
    weights = [1.0] * len(agents) if weight is None else list(weight)
    dtype = Inputs((base, *agents), dtype).input_dtype
    out = torch.empty(base.shape, dtype=out_dtype or dtype, device=base.device)
    if not base.numel():
        return out
    found = updates_of(base, agents, epsilon=epsilon, layout=layout, dtype=dtype, block=block)
    is_matrix = layout.holds_matrices(base)
    for updates, target in zip(found, layout.matrices(out), strict=True):
        with own_precision(base.device):
            solved = solve(updates, weights, ridge, is_matrix=is_matrix)
            if solved is None or scale == 0:
                store(rounded(updates.inputs.tensors[0], dtype), target)
                continue
            for lines in solved.solution.updates.walk():
                merged = solved.solution.lines(lines)
                store(merged.mul_(scale / solved.unit).add_(lines.base), target[lines.lines])
    return out


def solve(
    updates: Updates,
    weights: Sequence[float],
    ridge: float,
    *,
    is_matrix: bool = True,
    with_products: bool = False,
) -> Solved | None:
    """Take the first walk over a matrix.

    Args:
        updates: of all agents.
        weights: w_t, not 0.
        ridge: μ > 0.
        is_matrix: else the rule is the anchor alone.
        with_products: of the Grams too.

    Returns:
        What the second walk needs; None where no agent has a non-zero entry.

    Raises:
        KernelInputError: an input holds NaN or infinity.
        KernelOverflowError: a task vector is infinite.
        KernelRidgeError: μ is too small, even in float64.
    """
    try:
        return _solve(updates, weights, ridge, is_matrix, with_products)
    except KernelRidgeError:
        if updates.dtype == torch.float64:
            raise
    return _solve(replace(updates, dtype=torch.float64), weights, ridge, is_matrix, with_products)


def _solve(
    updates: Updates,
    weights: Sequence[float],
    ridge: float,
    is_matrix: bool,
    with_products: bool,
) -> Solved | None:
    sizes = updates.largest()
    numbers = tuple(t for t, size in enumerate(sizes) if size)
    if not numbers:
        return None
    updates = updates.kept(numbers, [power_of_two(sizes[t]) for t in numbers])
    unit = power_of_two(max(sizes[t] * abs(weights[t]) for t in numbers))
    factors = [weights[t] * unit / own for t, own in zip(numbers, updates.units, strict=True)]
    # One agent alone needs no solution.
    if not is_matrix or (len(numbers) == 1 and not with_products):
        return Solved(numbers, Anchored(updates, factors), unit)
    walked = first_walk(updates, factors)
    walked.normalise()
    products = walked.gram_products() if with_products else None
    if len(numbers) == 1:
        return Solved(numbers, Anchored(updates, factors), unit, products)
    walked.finish(ridge)
    return Solved(numbers, walked, unit, products)


def _check_options(epsilon: float, ridge: float) -> None:
    if not 0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon must be a finite number ≥ 0; got {epsilon}")
    if not 0 < ridge < float("inf"):
        raise ValueError(f"ridge must be a finite number > 0; got {ridge}")


@contextmanager
def own_precision(device: torch.device) -> Iterator[None]:
    """Whatever precision the caller's products have, these are of the compute dtype."""
    before = torch.get_float32_matmul_precision()
    if before != EXACT:
        torch.set_float32_matmul_precision(EXACT)
    try:
        with torch.autocast(device_type=device.type, enabled=False):
            yield
    finally:
        if before != EXACT:
            torch.set_float32_matmul_precision(before)


@dataclass
class DirectionSums:
    """Sums over the matrices of a tensor, for N agents.

    A matrix counts as often as it has parameters, for the agents that changed it.
    """

    kept: Array
    """``[N]`` Σ s X · τ over all values, also of what is no matrix."""
    rank: Array
    """``[N]`` sum of effective rank / in: 1 / (in Σ λ²), λ the eigenvalues of G."""
    cosine: Array
    """``[N, N]`` sum of the cosines of two agents' Grams."""
    both: Array
    """``[N, N]`` parameters of the matrices that both changed."""

    @classmethod
    def zeros(cls, agents: int) -> DirectionSums:
        """Sums over nothing."""
        square = (agents, agents)
        return cls(np.zeros(agents), np.zeros(agents), np.zeros(square), np.zeros(square))

    def of_agent(self, place: int) -> tuple[float, float, float]:
        """What is kept of an agent's update, its ranks, and what these are divided by."""
        found = self.kept[place], self.rank[place], self.both[place, place]
        kept, rank, size = map(float, found)
        return kept, rank, size

    def add(self, other: DirectionSums, places: Sequence[int]) -> None:
        """Add the sums of some of the agents, which have these places here."""
        pairs = np.ix_(places, places)
        self.kept[places] += other.kept
        self.rank[places] += other.rank
        self.cosine[pairs] += other.cosine
        self.both[pairs] += other.both


@torch.no_grad()
def measure(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    ridge: float,
    weight: Sequence[float],
    scale: float,
    layout: Layout,
    dtype: torch.dtype | None = None,
) -> DirectionSums:
    """Measure one tensor; arguments and errors as of :func:`merge`."""
    found = DirectionSums.zeros(len(agents))
    if not base.numel() or not agents:
        return found
    is_matrix = layout.holds_matrices(base)
    for updates in updates_of(base, agents, epsilon=epsilon, layout=layout, dtype=dtype):
        with own_precision(base.device):
            solved = solve(updates, weight, ridge, is_matrix=is_matrix, with_products=True)
            if solved is not None:
                found.add(_of_matrix(solved, len(agents), scale), range(len(agents)))
    return found


def _of_matrix(solved: Solved, agents: int, scale: float) -> DirectionSums:
    found = DirectionSums.zeros(agents)
    places = list(solved.numbers)
    updates = solved.solution.updates
    for block in updates.walk():
        change = solved.solution.lines(block)
        for t, (place, unit) in enumerate(zip(places, updates.units, strict=True)):
            product = float((change * block.update(t)).sum(dtype=torch.float64))
            found.kept[place] += scale * product / (unit * solved.unit)
    if solved.gram_products is not None:
        products = solved.gram_products.numpy()
        size, (_, width) = updates.inputs.numel, updates.shape
        own = np.diag(products)
        found.rank[places] = size / (width * own)
        pairs = np.ix_(places, places)
        found.cosine[pairs] = size * products / np.sqrt(own[:, None] * own)
        found.both[pairs] = size
    return found
