"""The table of RAM and RAM+, and the sums of an inspection, in torch operations.

They run on every device. Every operation rounds on its own (no fused multiply-add), so results
depend neither on the size of a block nor on the device.
"""

from __future__ import annotations

import torch


def look(block: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Every τ_t, 0 where |τ_t| ≤ ε, ``[N, n]``, and how many are not 0, int64 ``[n]``."""
    deltas = torch.hardshrink(block[1:] - block[0], epsilon)
    return deltas, (deltas != 0).sum(dim=0)


def run(
    block: torch.Tensor,
    epsilon: float,
    factor: torch.Tensor,
    weight: torch.Tensor,
    divisor: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    degree: torch.Tensor,
) -> None:
    """Merge a block, and count it.

    Args:
        block: ``[1 + N, n]`` the base's values and the agents'.
        epsilon, factor, weight, divisor, scale: of :class:`.recipe.Numbers`.
        out: ``[n]`` takes the merged values; of no element where they are not wanted.
        degree: int64 ``[N, N]`` the active parameters of an agent that 0, 1, … others changed
            too, to add to; of no agent where they are not wanted.
    """
    base = block[0]
    deltas, overlap = look(block, epsilon)
    if len(degree):
        add_degrees(deltas, overlap, degree)
    if len(out):
        lone, total = base, torch.zeros_like(base)
        for t, delta in enumerate(deltas):
            f = float(factor[t])
            value = block[t + 1] if f == 1 else delta * f + base
            lone = torch.where(delta != 0, value, lone)
            total += delta * float(weight[t])
        together = total / divisor[overlap] * scale + base
        torch.where(overlap >= 2, together, lone, out=out)


def add_degrees(deltas: torch.Tensor, overlap: torch.Tensor, degree: torch.Tensor) -> None:
    """Count the active parameters of every agent by how many others changed them too."""
    for t, delta in enumerate(deltas):
        degree[t] += torch.bincount(overlap[delta != 0], minlength=len(deltas) + 1)[1:]


def observe(
    block: torch.Tensor,
    epsilons: torch.Tensor,
    weight: torch.Tensor,
    divisor: torch.Tensor,
    scale: float,
    degree: torch.Tensor,
    energies: torch.Tensor,
    pairs: torch.Tensor,
) -> None:
    """Add a block's sums that need no λ.

    Args:
        block: as :func:`run` takes it.
        epsilons: to count at; the first one is the merge's own.
        weight, divisor, scale: as :func:`run` takes them.
        degree: int64 ``[thresholds, N, N]``, as :func:`run` takes it, by ε.
        energies: float64 ``[4, N]``: :data:`.energies.ENERGIES`.
        pairs: float64 ``[4, N, N]``: :data:`.energies.PAIRS`.
    """
    for number in range(len(epsilons) - 1, -1, -1):
        deltas, overlap = look(block, float(epsilons[number]))
        add_degrees(deltas, overlap, degree[number])
    mean, total = torch.zeros_like(block[0]), torch.zeros_like(block[0])
    # One after the other, as the merge adds them up.
    for t, delta in enumerate(deltas):
        mean += block[t + 1] - block[0]
        total += delta * float(weight[t])
    share = (total / divisor[overlap] * scale).double() * (overlap >= 2)
    sign, delta = deltas.sign().double(), deltas.double()
    active, square = sign.abs(), delta.square()
    energies[0] += square.sum(dim=1)
    energies[1] += square @ (overlap == 1).double()
    energies[2] += delta @ share
    energies[3] += delta @ (mean / len(deltas)).double()
    found = (active @ active.T, delta @ delta.T, square @ active.T, sign @ sign.T)
    pairs += torch.stack([pair.fill_diagonal_(0) for pair in found])


def compare(block: torch.Tensor, epsilon: float, outputs: torch.Tensor, sums: torch.Tensor) -> None:
    """Add a block's sums that tell what rounding left of λ.

    Args:
        block, epsilon: as :func:`run` takes them.
        outputs: ``[2, n]`` the merged values as rounded, and what they are with every λ at 1.
        sums: float64 ``[2, N]``: :data:`.energies.REALISED`.
    """
    deltas, overlap = look(block, epsilon)
    unique = deltas.double() * (overlap == 1)
    sums[0] += unique @ (outputs[0].double() - block[0].double())
    # Zeros of either sign are the same value.
    sums[1] += (unique != 0).double() @ (outputs[0] != outputs[1]).double()
