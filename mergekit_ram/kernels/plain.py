"""The table of RAM and RAM+, and the sums of an inspection, in torch operations.

They run on every device. Every operation rounds on its own (no fused multiply-add), so results
depend neither on the size of a block nor on the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from mergekit_ram.kernels.blocks import store
from mergekit_ram.kernels.recipe import Numbers


def are_same(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors are equal bit for bit, of any dtype: NaN is the same as itself."""
    first, *others = tensors
    return all(
        (other.dtype, other.shape) == (first.dtype, first.shape)
        and torch.equal(_bits(other), _bits(first))
        for other in others
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.flatten()
    flat = flat.clone() if flat.storage_offset() else flat
    return flat.view(torch.uint8 if flat.nbytes % torch.int64.itemsize else torch.int64)


def look(block: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Every τ_t, 0 where |τ_t| ≤ ε, ``[N, n]``, and how many are not 0, int64 ``[n]``."""
    deltas = torch.hardshrink(block[1:] - block[0], epsilon)
    return deltas, (deltas != 0).sum(dim=0)


def run(block: torch.Tensor, numbers: Numbers, out: torch.Tensor, degree: torch.Tensor) -> None:
    """Merge a block, and count it.

    Args:
        block: ``[1 + N, n]`` the base's values and the agents'.
        numbers: of the merge.
        out: ``[n]``, of any float dtype, takes the merged values; of no element where they are
            not wanted.
        degree: int64 ``[N, N]`` the active parameters of an agent that 0, 1, … others changed
            too, to add to; of no agent where they are not wanted.

    Raises:
        KernelOverflowError: a merged value is too large for the dtype of ``out``.
    """
    base = block[0]
    deltas, overlap = look(block, numbers.epsilon)
    if len(degree):
        add_degrees(deltas, overlap, degree)
    if len(out):
        divisor = torch.as_tensor(numbers.divisor, device=block.device)
        lone, total = base, torch.zeros_like(base)
        for t, delta in enumerate(deltas):
            f = float(numbers.factor[t])
            value = block[t + 1] if f == 1 else delta * f + base
            lone = torch.where(delta != 0, value, lone)
            total += delta * float(numbers.weight[t])
        together = total / divisor[overlap] * numbers.scale + base
        store(torch.where(overlap >= 2, together, lone), out)


def add_degrees(deltas: torch.Tensor, overlap: torch.Tensor, degree: torch.Tensor) -> None:
    """Count the active parameters of every agent by how many others changed them too."""
    for t, delta in enumerate(deltas):
        degree[t] += torch.bincount(overlap[delta != 0], minlength=len(deltas) + 1)[1:]


def observe(
    block: torch.Tensor,
    edges: torch.Tensor,
    epsilons: torch.Tensor,
    numbers: Numbers,
    degree: torch.Tensor,
    energies: torch.Tensor,
    pairs: torch.Tensor,
) -> None:
    """Add the sums of every piece of a block that need no λ.

    Args:
        block: as :func:`run` takes it.
        edges: int64 ``[P + 1]`` where pieces begin and end in it.
        epsilons: float64, to count at; the first one is the merge's own.
        numbers: of the merge.
        degree: int64 ``[P, thresholds, N, N]``, as :func:`run` takes it.
        energies: float64 ``[P, 4, N]``: :data:`.energies.ENERGIES`.
        pairs: float64 ``[P, 4, N, N]``: :data:`.energies.PAIRS`.
    """
    divisor = torch.as_tensor(numbers.divisor, device=block.device)
    for piece, (start, stop) in enumerate(itertools.pairwise(edges.tolist())):
        part = block[:, start:stop]
        for number in range(len(epsilons) - 1, -1, -1):
            deltas, overlap = look(part, float(epsilons[number]))
            add_degrees(deltas, overlap, degree[piece, number])
        mean, total = torch.zeros_like(part[0]), torch.zeros_like(part[0])
        # One after the other, as the merge adds them up.
        for t, delta in enumerate(deltas):
            mean += part[t + 1] - part[0]
            total += delta * float(numbers.weight[t])
        share = (total / divisor[overlap] * numbers.scale).double() * (overlap >= 2)
        sign, delta = deltas.sign().double(), deltas.double()
        active, square = sign.abs(), delta.square()
        energies[piece, 0] += square.sum(dim=1)
        energies[piece, 1] += square @ (overlap == 1).double()
        energies[piece, 2] += delta @ share
        energies[piece, 3] += delta @ (mean / len(deltas)).double()
        found = (active @ active.T, delta @ delta.T, square @ active.T, sign @ sign.T)
        pairs[piece] += torch.stack([pair.fill_diagonal_(0) for pair in found])


def compare(
    block: torch.Tensor,
    edges: torch.Tensor,
    numbers: Numbers,
    outputs: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    """Add the sums of every piece of a block that tell what rounding left of λ.

    Args:
        block, edges, numbers: as :func:`observe` takes them.
        outputs: ``[2, n]`` the merged values as rounded, and what they are with every λ at 1.
        sums: float64 ``[P, 2, N]``: :data:`.energies.REALISED`.
    """
    for piece, (start, stop) in enumerate(itertools.pairwise(edges.tolist())):
        part, (out, plain) = block[:, start:stop], outputs[:, start:stop]
        deltas, overlap = look(part, numbers.epsilon)
        unique = deltas.double() * (overlap == 1)
        sums[piece, 0] += unique @ (out.double() - part[0].double())
        # Zeros of either sign are the same value.
        sums[piece, 1] += (unique != 0).double() @ (out != plain).double()
