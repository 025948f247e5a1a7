"""Energies, angles and sign conflicts of task vectors: what an inspection sums up beside counts.

Task vectors are taken as the merge takes them (float32, float64 for float64 inputs) and their
products summed in float64. Blocks are added up in their order, so that no result depends on the
number of threads. Loops and torch operations give the same counts, and the same sums but for their
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mergekit_ram.kernels.blocks import Inputs
from mergekit_ram.kernels.ram import Call, merge_block, over_blocks
from mergekit_ram.kernels.recipe import Recipe, checked_epsilon, rounded_number

Array = npt.NDArray[np.float64]
Tensors = tuple[torch.Tensor, ...]
Add = Callable[[Call, torch.Tensor, torch.Tensor, Tensors], None]
"""Adds a block, whose pieces begin and end at these places in it, to sums ``[P, …]``."""

ENERGIES = ("energy", "unique_energy", "shared_energy", "mean_energy")
"""Of every agent: E = Σ τ² over its active parameters; U = Σ τ² over its unique ones; S = Σ m · τ
over its shared ones, m what the merge adds there; Σ τ̄ · τ over its active ones, τ̄ the mean of
all task vectors."""

PAIRS = ("both", "dot", "square", "agreement")
"""Of agents a and b, 0 where they are the same: the parameters that both changed; over those,
Σ τ_a · τ_b and Σ τ_a²; how many of them move the same way, less how many do not."""

REALISED = ("step", "changed")
"""Of every agent: Σ (out − base) · τ over its unique parameters; those of them whose stored value
differs from the one that λ = 1 gives."""


@dataclass(frozen=True)
class Observed:
    """What there is to see in one tensor before λ is known, for P pieces and N agents.

    A piece is a stretch of consecutive elements whose sums are kept apart: the rows of one group
    of a sample, or the whole tensor.
    """

    numels: tuple[int, ...]
    """Of the pieces."""
    degree: Array
    """``[P, thresholds, N, N]`` active parameters by agent and overlap count."""
    energies: Array
    """``[P, 4, N]``; see :data:`ENERGIES`."""
    pairs: Array
    """``[P, 4, N, N]``; see :data:`PAIRS`."""


def observe(
    recipe: Recipe,
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    thresholds: Sequence[float] = (),
    numels: Sequence[int] | None = None,
) -> Observed:
    """Sum up one tensor as far as λ is not needed.

    Args:
        recipe: of the merge; its λ is not used.
        base: the base's tensor.
        agents: the agents' tensors.
        thresholds: further ε to count at.
        numels: sizes of the pieces, consecutive elements; by default the tensor is one.

    Raises:
        KernelInputError: an input holds NaN or infinity, or is of another shape or no float.
        KernelParameterError: ε is negative, NaN or infinite.
    """
    inputs = Inputs((base, *agents), recipe.dtype)
    numbers = recipe.numbers(inputs.compute_dtype)
    every = [
        rounded_number("epsilon", checked_epsilon(epsilon), inputs.compute_dtype)
        for epsilon in (recipe.epsilon, *thresholds)
    ]
    # The merge's own is among them as a rule, and need not be counted twice.
    epsilons = torch.tensor(list(dict.fromkeys(every)), dtype=torch.float64, device="cpu")
    sizes, n = tuple(numels or (inputs.numel,)), len(agents)
    shapes = (len(epsilons), n, n), (len(ENERGIES), n), (len(PAIRS), n, n)

    def add(call: Call, block: torch.Tensor, edges: torch.Tensor, sums: Tensors) -> None:
        call("observe", block, edges, epsilons, numbers, *sums)

    degree, energies, pairs = _summed(inputs, sizes, shapes, add, recipe.chunk_size)
    asked = [epsilons.tolist().index(epsilon) for epsilon in every]
    return Observed(sizes, degree[:, asked], energies, pairs)


def realise(
    recipe: Recipe,
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    numels: Sequence[int] | None = None,
) -> Array:
    """Merge one tensor, and sum up what its rounding leaves of λ; the result is not kept.

    Args:
        recipe: of the merge, with λ.
        base: the base's tensor.
        agents: the agents' tensors.
        numels: as :func:`observe` takes them.

    Returns:
        :data:`REALISED`, ``[pieces, 2, agents]``.

    Raises:
        KernelInputError: an input holds NaN or infinity, or is of another shape or no float.
        KernelOverflowError: the result is too large for its dtype.
    """
    inputs = Inputs((base, *agents), recipe.dtype)
    out_dtype = recipe.out_dtype or inputs.input_dtype
    recipes = recipe, replace(recipe, rescale=(1.0,) * len(agents))
    numbers = [each.numbers(inputs.compute_dtype) for each in recipes]

    def add(call: Call, block: torch.Tensor, edges: torch.Tensor, sums: Tensors) -> None:
        uncounted = torch.zeros(0, 0, dtype=torch.int64, device=block.device)
        outputs = torch.empty(2, block.shape[1], dtype=out_dtype, device=block.device)
        for own, target in zip(numbers, outputs, strict=True):
            merge_block(call, block, own, target, uncounted)
        call("compare", block, edges, numbers[0], outputs.to(inputs.compute_dtype), *sums)

    sizes, shape = tuple(numels or (inputs.numel,)), (len(REALISED), len(agents))
    return _summed(inputs, sizes, (shape,), add, recipe.chunk_size)[0]


def _summed(
    inputs: Inputs,
    numels: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    add: Add,
    size: int | None,
) -> list[npt.NDArray[Any]]:
    """The sums of every piece, ``[P, …]``: of its part of each block, which is added to zeros."""
    stops = np.cumsum(numels)

    def work(call: Call, block: torch.Tensor, place: slice) -> tuple[int, Tensors]:
        inner = stops[(stops > place.start) & (stops < place.stop)] - place.start
        edges = torch.tensor([0, *inner.tolist(), block.shape[1]], device="cpu")
        sums = tuple(
            torch.zeros(len(edges) - 1, *shape, dtype=torch.float64, device=block.device)
            for shape in shapes
        )
        add(call, block, edges, sums)
        return int(np.searchsorted(stops, place.start, side="right")), sums

    totals = [np.zeros((len(numels), *shape)) for shape in shapes]
    for first, found in over_blocks(inputs, work, size):
        for total, sums in zip(totals, found, strict=True):
            total[first : first + len(sums)] += sums.cpu().numpy()
    return totals
