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
Counts = npt.NDArray[np.int64]
Sums = tuple[torch.Tensor, ...]

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
    degree: Counts
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
    _, _, weight, divisor, scale = recipe.numbers(inputs.compute_dtype, inputs.device)
    every = [
        rounded_number("epsilon", checked_epsilon(epsilon), inputs.compute_dtype)
        for epsilon in (recipe.epsilon, *thresholds)
    ]
    # The merge's own is among them as a rule, and need not be counted twice.
    epsilons = torch.tensor(list(dict.fromkeys(every)), dtype=torch.float64, device="cpu")
    n = len(agents)

    def zeros() -> Sums:
        return (
            torch.zeros(len(epsilons), n, n, dtype=torch.int64, device=inputs.device),
            torch.zeros(len(ENERGIES), n, dtype=torch.float64, device=inputs.device),
            torch.zeros(len(PAIRS), n, n, dtype=torch.float64, device=inputs.device),
        )

    def add(call: Call, block: torch.Tensor, sums: Sums) -> None:
        call("observe", block, epsilons, weight, divisor, scale, *sums)

    pieces = _pieces(inputs, numels)
    found = [_summed(piece, zeros, add, recipe.chunk_size) for piece in pieces]
    degree, energies, pairs = (np.stack(column) for column in zip(*found, strict=True))
    asked = [epsilons.tolist().index(epsilon) for epsilon in every]
    return Observed(tuple(piece.numel for piece in pieces), degree[:, asked], energies, pairs)


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
    numbers = [each.numbers(inputs.compute_dtype, inputs.device) for each in recipes]

    def zeros() -> Sums:
        shape = len(REALISED), len(agents)
        return (torch.zeros(shape, dtype=torch.float64, device=inputs.device),)

    def add(call: Call, block: torch.Tensor, sums: Sums) -> None:
        uncounted = torch.zeros(0, 0, dtype=torch.int64, device=block.device)
        outputs = torch.empty(2, block.shape[1], dtype=out_dtype, device=block.device)
        for own, target in zip(numbers, outputs, strict=True):
            merge_block(call, block, own, target, uncounted)
        call("compare", block, numbers[0].epsilon, outputs.to(block.dtype), *sums)

    pieces = _pieces(inputs, numels)
    return np.stack([_summed(piece, zeros, add, recipe.chunk_size)[0] for piece in pieces])


def _pieces(inputs: Inputs, numels: Sequence[int] | None) -> list[Inputs]:
    if numels is None:
        return [inputs]
    columns = (torch.split(tensor.reshape(-1), list(numels)) for tensor in inputs.tensors)
    return [Inputs(parts, inputs.input_dtype) for parts in zip(*columns, strict=True)]


def _summed(
    inputs: Inputs,
    zeros: Callable[[], Sums],
    add: Callable[[Call, torch.Tensor, Sums], None],
    size: int | None,
) -> list[npt.NDArray[Any]]:
    """The sums of all blocks, each of which is added to zeros."""

    def work(call: Call, block: torch.Tensor, place: slice) -> Sums:
        sums = zeros()
        add(call, block, sums)
        return sums

    columns = zip(zeros(), *over_blocks(inputs, work, size), strict=True)
    return [sum(column[1:], column[0]).cpu().numpy() for column in columns]
