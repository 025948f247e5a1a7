"""RAM over directions: the rule of ``ram_directions`` for one matrix.

With τ_t the agents' task vectors ``[out, in]``, w_t their weights and μ the ridge::

    G_t = τ_tᵀ τ_t / ‖τ_t‖²                                [in, in], of trace 1
    P   = Σ_t d_t |d_t| / √(Σ_t d_t²),  d_t = w_t τ_t       entry by entry: by length
    X   = P − [Σ_t (P − w_t τ_t) G_t] (Σ_t G_t + μ (N / in) I)⁻¹

X minimises Σ_t ‖(X − w_t τ_t) τ_tᵀ‖² / ‖τ_t‖² + μ (N / in) ‖X − P‖²: what an agent's update does
to the directions of the input that it uses is kept. The criterion is that of WUDI-Merging (arXiv
2503.08099), solved at once and held at P by a ridge that is relative to the mean eigenvalue.

An agent without a non-zero entry is left out of N. One agent alone is w τ. What is no matrix gets
P. Rows of X are independent once the Grams are known, and these are sums over rows: two walks over
blocks of rows (:mod:`.matrices`), and about (N + 3) in² numbers in memory. The same X comes from
products ``[N out, N out]`` and two walks over blocks of columns, which is how it is computed where
that takes fewer operations: where in > N out, and for many agents of a wide matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from mergekit_ram.kernels.matrices import Block, Updates

LARGEST_ERROR = 4e-6
"""Of an entry of X that the solution may leave, where the largest update is about 1."""


class KernelRidgeError(ValueError):
    """A ridge so small that rounding is larger."""


class Anchored:
    """P alone: the rule for what is no matrix; of one agent that is w τ.

    Args:
        updates: of the agents that count.
        factors: their w_t, in units of the updates.
    """

    def __init__(self, updates: Updates, factors: Sequence[float]):
        self.updates = updates
        self._factors = factors

    def lines(self, block: Block) -> torch.Tensor:
        """A block's lines of X, in memory of their own."""
        if len(self._factors) == 1:
            return block.update(0) * self._factors[0]
        return self.anchor(block)

    def anchor(self, block: Block) -> torch.Tensor:
        """A block's lines of P = Σ d_t |d_t| / √(Σ d_t²), in memory of their own."""
        squares, anchor = torch.zeros_like(block.base), torch.zeros_like(block.base)
        for t, factor in enumerate(self._factors):
            own = block.update(t) * factor
            squares.addcmul_(own, own)
            anchor.addcmul_(own, own.abs())
        # Nothing divided by next to nothing is nothing.
        return anchor.div_(squares.sqrt_().clamp_(min=torch.finfo(squares.dtype).tiny))


class Primal(Anchored):
    """X by N Grams ``[in, in]``, and a walk over rows."""

    @staticmethod
    def operations(count: int, height: int, width: int) -> float:
        """Of all products and solutions."""
        products = 2 * 2 * count * height * width**2
        return products + width**3 / 3 + 2 * count * width**3

    def __init__(self, updates: Updates, factors: Sequence[float]):
        super().__init__(updates, factors)
        count, (_, width) = len(factors), updates.shape
        self._maps = updates.empty(count, width, width).zero_()
        for block in updates.walk():
            for t, gram in enumerate(self._maps):
                gram.addmm_(block.update(t).T, block.update(t))
        self.norms = _diagonal_sums(self._maps)

    def normalise(self) -> None:
        """Make Grams of what was summed."""
        for gram, norm in zip(self._maps, self.norms, strict=True):
            gram.div_(norm)

    def gram_products(self) -> torch.Tensor:
        """Σ G_a ∘ G_b of every two agents, float64 ``[N, N]``."""
        flat = self._maps.flatten(1)
        return (flat @ flat.T).double().cpu()

    def finish(self, ridge: float) -> None:
        """Make G_t (Σ G_t + μ (N / in) I)⁻¹ of every Gram.

        Kept apart from the block's product with it, the division by the ridge meets no rounding
        but that of the Grams.
        """
        count, width, _ = self._maps.shape
        ridge = ridge * count / width
        system = self._maps.sum(dim=0)
        factor = _factorised(system, ridge)
        for gram in self._maps:
            # Both are symmetric, so this is the transpose of what is wanted.
            gram.copy_(torch.cholesky_solve(gram, factor).T)
        del factor
        # All of them together times the system are the sum of the Grams.
        residual = torch.addmm(system, self._maps.sum(dim=0), system, alpha=-1)
        residual.diagonal().sub_(ridge)
        _check(residual, 1 / ridge)

    def lines(self, block: Block) -> torch.Tensor:
        """P − Σ (P − w_t τ_t) [G_t (Σ G_t + μ (N / in) I)⁻¹]"""
        anchor = self.anchor(block)
        misfits = torch.empty_like(block.updates)
        for t, factor in enumerate(self._factors):
            torch.sub(anchor, block.update(t), alpha=factor, out=misfits[:, t])
        # One product over agents and directions.
        return anchor.addmm_(misfits.flatten(1), self._maps.flatten(0, 1), alpha=-1)


class Dual(Anchored):
    """The same X by products ``[N out, N out]``, and a walk over columns.

    With Z the τ_t / ‖τ_t‖ stacked, ``[N out, in]``, and K the (P − w_t τ_t) τ_tᵀ / ‖τ_t‖ side by
    side, ``[out, N out]``: X = P − K (Z Zᵀ + μ (N / in) I)⁻¹ Z.
    """

    @staticmethod
    def operations(count: int, height: int, width: int) -> float:
        """As :meth:`Primal.operations`."""
        stacked = count * height
        products = 2 * stacked**2 * width + 2 * 2 * height * stacked * width
        return products + stacked**3 / 3 + 2 * height * stacked**2

    def __init__(self, updates: Updates, factors: Sequence[float]):
        super().__init__(updates, factors)
        count, (height, self._width) = len(factors), updates.shape
        self._height = height
        self._stacked = updates.empty(count * height, count * height).zero_()
        self._anchored = updates.empty(height, count * height).zero_()
        for block in updates.walk():
            stacked = block.updates.flatten(0, 1)
            self._stacked.addmm_(stacked, stacked.T)
            self._anchored.addmm_(self.anchor(block), stacked.T)
        tiles = self._tiles()
        self.norms = _diagonal_sums(tiles[t, :, t] for t in range(count))

    def _tiles(self) -> torch.Tensor:
        """A view of the stacked products, by agent and row twice."""
        shape = (len(self._factors), self._height) * 2
        return self._stacked.view(shape)

    def normalise(self) -> None:
        """Make Z Zᵀ and K of what was summed."""
        count, height = len(self._factors), self._height
        lengths = torch.tensor(self.norms, dtype=torch.float64).sqrt().to(self._stacked)
        lengths = self._lengths = lengths.repeat_interleave(height)
        tiles = self._tiles()
        for t, weight in enumerate(self._factors):
            own = self._anchored.view(height, count, height)[:, t]
            own.sub_(tiles[t, :, t], alpha=weight)
        self._anchored.div_(lengths)
        self._stacked.div_(lengths).div_(lengths[:, None])

    def gram_products(self) -> torch.Tensor:
        """Σ G_a ∘ G_b of every two agents, float64 ``[N, N]``."""
        return self._tiles().square().sum(dim=(1, 3), dtype=torch.float64).cpu()

    def finish(self, ridge: float) -> None:
        """Solve."""
        ridge = ridge * len(self._factors) / self._width
        factor = _factorised(self._stacked, ridge)
        solved = torch.cholesky_solve(self._anchored.T, factor)
        residual = torch.addmm(self._anchored.T, self._stacked, solved, alpha=-1)
        # ‖Zᵀ (Z Zᵀ + ridge I)⁻¹‖ is at most 1 / (2 √ridge), and a line has as many entries as in.
        _check(residual, 0.5 / math.sqrt(ridge * self._width))
        self._solved = solved.div_(self._lengths[:, None]).T
        del self._stacked, self._anchored

    def lines(self, block: Block) -> torch.Tensor:
        """P − K (Z Zᵀ + μ (N / in) I)⁻¹ Z"""
        return self.anchor(block).addmm_(self._solved, block.updates.flatten(0, 1), alpha=-1)


def first_walk(updates: Updates, factors: Sequence[float]) -> Primal | Dual:
    """Sum up the products of the side that takes fewer operations, and says what is walked over."""
    kind = _kind(len(factors), *updates.shape)
    return kind(replace(updates, by_columns=kind is Dual), factors)


def _kind(*size: int) -> type[Primal] | type[Dual]:
    return Dual if Dual.operations(*size) < Primal.operations(*size) else Primal


def _diagonal_sums(squares: Iterable[torch.Tensor]) -> tuple[float, ...]:
    return tuple(float(square.diagonal().sum(dtype=torch.float64)) for square in squares)


def _factorised(system: torch.Tensor, ridge: float) -> torch.Tensor:
    """The Cholesky factor of ``system + ridge I``, which is left in ``system``."""
    system.diagonal().add_(ridge)
    factor: torch.Tensor
    factor, failure = torch.linalg.cholesky_ex(system)
    if failure:
        raise KernelRidgeError(f"the ridge is too small for {system.dtype}")
    return factor


def _check(residual: torch.Tensor, growth: float) -> None:
    """Refuse a solution whose residual, column by column, leaves too much in X.

    Args:
        residual: of the equations that were solved.
        growth: how many times as large an entry's error in X may be.

    Raises:
        KernelRidgeError: as of :func:`_factorised`; a wider dtype may do.
    """
    error = growth * float(residual.norm()) / math.sqrt(residual.shape[1])
    if not error < LARGEST_ERROR:
        raise KernelRidgeError(f"the ridge is too small for {residual.dtype}")
