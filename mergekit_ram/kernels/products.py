"""Products and solutions of large matrices, by the fastest library that torch brings along.

On processors that are not Intel's, the library behind ``torch.mm`` leaves half of the vector units
unused; oneDNN, which is behind torch's layers, does not. Both sum in float32, in orders of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

SMALLEST_SIDE = 64
"""Of a product that is worth handing over."""

SOLVED_AT_ONCE = 128
"""Unknowns; more are halved, so that most of the work is products."""

PANELS = 4
"""A matrix times its own transpose is symmetric: it is computed in so many panels of columns,
each from the diagonal down."""

SMALLEST_PANEL = 128


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``left @ right`` of two matrices of any strides, new and contiguous."""
    sides = (*left.shape, right.shape[1])
    is_layer = (
        left.device.type == "cpu"
        and left.dtype == torch.float32
        and min(sides) >= SMALLEST_SIDE
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )
    if not is_layer:
        return torch.mm(left, right)
    return torch.nn.functional.linear(left.to_mkldnn(), right.T).to_dense()


def add_square(total: torch.Tensor, lines: torch.Tensor, factor: float = 1.0) -> None:
    """Add ``factor lines @ lines.T``, except above the panels on the diagonal: see mirror."""
    lines = lines.contiguous()
    for first, last in _panels(len(total)):
        product = multiply(lines[first:], lines[first:last].T)
        total[first:, first:last].add_(product, alpha=factor)


def mirror(total: torch.Tensor) -> None:
    """Fill in what :func:`add_square` left out."""
    for first, last in _panels(len(total)):
        total[first:last, last:] = total[last:, first:last].T


def _panels(size: int) -> Iterator[tuple[int, int]]:
    width = max(SMALLEST_PANEL, -(-size // PANELS))
    for first in range(0, size, width):
        yield first, min(first + width, size)


def factorise_in_place(system: torch.Tensor) -> bool:
    """Write the lower triangular L of ``L Lᵀ = system`` over the system's lower triangle.

    Returns:
        Whether there is one; where not, what the system holds has no meaning.
    """
    half = _half(system)
    if not half:
        factor, failure = torch.linalg.cholesky_ex(system)
        system.copy_(factor)
        return not failure
    if not factorise_in_place(system[:half, :half]):
        return False
    side = system[half:, :half].T.contiguous()
    _solve_lower(system[:half, :half], side)
    system[half:, :half] = side.T
    add_square(system[half:, half:], side.T, -1.0)
    return factorise_in_place(system[half:, half:])


def solve_in_place(factor: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``(L Lᵀ)⁻¹ right`` for a lower triangular L, written over ``right``.

    Args:
        factor: L, ``[n, n]``; what stands above the diagonal does not matter.
        right: ``[n, m]``.
    """
    _solve_lower(factor, right)
    _solve_upper(factor.T, right)
    return right


def _solve_lower(factor: torch.Tensor, right: torch.Tensor) -> None:
    half = _half(factor)
    if not half:
        right.copy_(torch.linalg.solve_triangular(factor, right, upper=False))
        return
    _solve_lower(factor[:half, :half], right[:half])
    right[half:].sub_(multiply(factor[half:, :half], right[:half]))
    _solve_lower(factor[half:, half:], right[half:])


def _solve_upper(factor: torch.Tensor, right: torch.Tensor) -> None:
    half = _half(factor)
    if not half:
        right.copy_(torch.linalg.solve_triangular(factor, right, upper=True))
        return
    _solve_upper(factor[half:, half:], right[half:])
    right[:half].sub_(multiply(factor[:half, half:], right[half:]))
    _solve_upper(factor[:half, :half], right[:half])


def _half(factor: torch.Tensor) -> int:
    """Where to part a system; 0 where it is small enough."""
    return len(factor) // 2 if len(factor) > SOLVED_AT_ONCE else 0
