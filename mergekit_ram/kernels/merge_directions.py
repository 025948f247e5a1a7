"""Merge one tensor by RAM over directions: every matrix in it, in its own unit, rounded once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from mergekit_ram.kernels.blocks import Inputs, KernelOverflowError
from mergekit_ram.kernels.directions import Anchored, Dual, KernelRidgeError, Primal, first_walk
from mergekit_ram.kernels.updates import Layout, Updates, power_of_two

__all__ = ["RIDGE", "KernelRidgeError", "Layout", "Solved", "merge", "solve", "updates_of"]

RIDGE = 0.3

EXACT = "highest"
"""torch's name of products that are not shortened."""

PLAIN_WEIGHTS = (1e-6, 1e6)
"""Sizes of weights that need no unit."""

_LAYOUT = Layout()


@dataclass(frozen=True)
class Solved:
    """One matrix after the first walk, ready for the second."""

    updates: Updates
    """Of the agents that changed it."""
    numbers: tuple[int, ...]
    """Which of the given agents these are."""
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
        KernelRidgeError: ``ridge`` is too small to reckon with.
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
                target.copy_(updates.base.to(updates.input_dtype))
            else:
                _write(solved, scale, target)
    return out


def updates_of(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    layout: Layout = _LAYOUT,
    dtype: torch.dtype | None = None,
    block: int | None = None,
) -> list[Updates]:
    """The task vectors of every matrix in a tensor; arguments as of :func:`merge`.

    Raises:
        KernelInputError: an input is of another shape or no float.
    """
    checked = Inputs((base, *agents), dtype)
    return [
        Updates(
            own_base,
            own_agents,
            epsilon=epsilon,
            input_dtype=checked.input_dtype,
            compute_dtype=checked.compute_dtype,
            block=block,
        )
        for own_base, *own_agents in zip(
            *(layout.matrices(tensor.detach()) for tensor in (base, *agents)), strict=True
        )
    ]


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
    return _solve(updates.in_float64(), weights, ridge, is_matrix, with_products)


def _solve(
    updates: Updates,
    weights: Sequence[float],
    ridge: float,
    is_matrix: bool,
    with_products: bool,
) -> Solved | None:
    """Walk without units, which is right for all but very large and very small numbers.

    A sum of squares is 0 where nothing was changed, and where that is lost in its rounding.
    """
    if is_matrix and len(weights) > 1:
        walked = first_walk(updates, weights)
        if _are_plain(weights) and all(updates.holds_square(norm) for norm in walked.norms):
            numbers = tuple(range(len(weights)))
            return _finished(Solved(updates, numbers, walked, 1.0), walked, ridge, with_products)
        del walked
    sizes = updates.largest()
    numbers = tuple(t for t, size in enumerate(sizes) if size)
    if not numbers:
        return None
    updates = updates.kept(numbers, [power_of_two(sizes[t]) for t in numbers])
    unit = power_of_two(max(sizes[t] * abs(weights[t]) for t in numbers))
    factors = [weights[t] * unit / own for t, own in zip(numbers, updates.units, strict=True)]
    found = Solved(updates, numbers, Anchored(updates, factors), unit)
    if not is_matrix or (len(numbers) == 1 and not with_products):
        return found
    return _finished(found, first_walk(updates, factors), ridge, with_products)


def _finished(found: Solved, walked: Primal | Dual, ridge: float, with_products: bool) -> Solved:
    """Solve after the walk; one agent alone needs no solution."""
    walked.normalise()
    if with_products:
        found = replace(found, gram_products=walked.gram_products())
    if len(found.numbers) == 1:
        return found
    walked.finish(ridge)
    return replace(found, solution=walked)


def _write(solved: Solved, scale: float, target: torch.Tensor) -> None:
    """Take the second walk, and round base + s X into a matrix."""
    updates = solved.updates
    largest = min(torch.finfo(target.dtype).max, torch.finfo(updates.dtype).max)
    for block in updates.walk():
        merged = solved.solution.lines(block)
        merged.mul_(scale / solved.unit).add_(block.base)
        lines = updates.lines_of(target, block)
        lines.copy_(merged)
        low, high = (float(bound) for bound in torch.aminmax(merged))
        size = max(-low, high)
        # NaN fails this comparison too.
        if not (size < largest and math.isfinite(low + high)):
            _check_fits(lines, size, updates.dtype)


def _check_fits(lines: torch.Tensor, size: float, dtype: torch.dtype) -> None:
    if not size < float("inf"):
        raise KernelOverflowError(f"the merged values overflow {dtype}")
    if not torch.isfinite(lines).all():
        raise KernelOverflowError(
            f"a merged value of size {size:.6g} does not fit {lines.dtype}, "
            f"whose largest is {torch.finfo(lines.dtype).max:.6g}"
        )


def _check_options(epsilon: float, ridge: float) -> None:
    if not 0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon must be a finite number ≥ 0; got {epsilon}")
    if not 0 < ridge < float("inf"):
        raise ValueError(f"ridge must be a finite number > 0; got {ridge}")


def _are_plain(weights: Sequence[float]) -> bool:
    smallest, largest = PLAIN_WEIGHTS
    return all(smallest <= abs(weight) <= largest for weight in weights)


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
