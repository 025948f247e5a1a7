"""Sums over the whole model, ``[replicates, …]``: of all sampled rows, then of each group alone.

Each group of a sample's rows estimates the model's sums by itself. Further replicates say how the
sums could differ by rows that were not sampled. Without a sample there is one replicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.sample import GROUPS
from mergekit_ram.inspection.walk import SampledTensor
from mergekit_ram.kernels.directions import DirectionSums
from mergekit_ram.kernels.energies import ENERGIES, PAIRS, REALISED, Array, Observed
from mergekit_ram.overlap import AgentCounts, OverlapStatistics, TensorOverlap
from mergekit_ram.tensors import agent_name

TINY = np.finfo(np.float64).tiny

OF_THREE = 3.0
"""What none of n sampled rows shows, fewer than three of every n rows have, 95 in 100 times."""


class Factor(NamedTuple):
    """The parameters that decide how an agent's unique parameters are merged in some tensors."""

    r: float
    alpha: float
    by_hand: float | None
    scale: float
    weight: float

    @property
    def size(self) -> float:
        """The factor on the agent's task vector."""
        return self.scale * self.weight

    @classmethod
    def of(cls, merge: ExecuteMergeMethodTask, model: ModelReference) -> Factor:
        """The parameters of one agent in one merge by ``ram_plus``."""
        shared, own = merge.parameters, merge.input_parameters[model]
        return cls(shared["r"], shared["alpha"], own["rescale"], shared["scale"], own["weight"])

    def rescale(self, ratio: Array) -> Array:
        """λ for every ρ."""
        if self.by_hand is not None:
            return np.full_like(ratio, self.by_hand)
        return 1.0 + self.r * np.minimum(ratio, self.alpha)


@dataclass(frozen=True)
class TensorSums:
    """Counts of one tensor of the output."""

    counts: TensorOverlap
    """Rounded where they are estimates."""
    changed: Array
    """``[replicates]`` parameters that some agent changed."""
    row: float
    """Parameters that one sampled row stands for; 0 in a tensor that was read whole."""


class Sums:
    """Sums over a model of N agents, in float64, which is exact for counts.

    Args:
        agents: names of all agents of the model.
        thresholds: number of thresholds, the merge's own included.
        is_sample: whether rows are sampled.
    """

    def __init__(self, agents: Sequence[str], thresholds: int, is_sample: bool):
        n, replicates = len(agents), 1 + GROUPS * is_sample
        self.agents = list(agents)
        self.parameters = self.seen = 0
        self.degree = np.zeros((replicates, thresholds, n, n))
        self.energies = np.zeros((replicates, len(ENERGIES), n))
        self.pairs = np.zeros((replicates, len(PAIRS), n, n))
        self.realised = np.zeros((replicates, len(REALISED), n))
        self.is_realised = False
        self.unique: list[dict[Factor, Array]] = [{} for _ in agents]
        """Of every agent: Σ τ² over its unique parameters, by what they are multiplied with."""
        self.directions: DirectionSums | None = None
        self.tensors: list[TensorSums] = []

    @property
    def statistics(self) -> OverlapStatistics:
        """The counts of every tensor, rounded where they are estimates."""
        return OverlapStatistics(tensors=tuple(tensor.counts for tensor in self.tensors))

    def add(self, tensor: SampledTensor, seen: Observed, directions: DirectionSums | None) -> None:
        """Add one tensor."""
        places, weights = self._places(tensor), self._weights(tensor)
        rows, columns = np.ix_(places, places)
        degree, energies = _weighted(weights, seen.degree), _weighted(weights, seen.energies)
        self.degree[:, :, places, : len(places)] += degree
        self.energies[:, :, places] += energies
        self.pairs[:, :, rows, columns] += _weighted(weights, seen.pairs)
        for number, agent in enumerate(tensor.agents):
            own = self.unique[places[number]]
            factor = Factor.of(tensor.merge, cast(ModelReference, agent.id))
            own[factor] = own.get(factor, 0.0) + energies[:, 1, number]
        if directions is not None:
            self.directions = self.directions or DirectionSums.zeros(len(self.agents))
            self.directions.add(directions, places)
        self.parameters += tensor.numel
        self.seen += sum(tensor.rows.numels)
        # A parameter that k agents changed is counted once by each of them.
        by_overlap = seen.degree[:, 0].sum(axis=1) // np.arange(1, len(places) + 1)
        changed = _weighted(weights, by_overlap.sum(axis=1))
        row = tensor.numel / tensor.rows.count if tensor.rows.count else 0.0
        self.tensors.append(TensorSums(_rounded(tensor, degree[0, 0]), changed, row))

    def add_realised(self, tensor: SampledTensor, sums: Array) -> None:
        """Add one tensor of the second pass."""
        self.realised[:, :, self._places(tensor)] += _weighted(self._weights(tensor), sums)
        self.is_realised = True

    def add_unseen(self) -> None:
        """Append replicates with three rows of the widest tensor that were not sampled.

        All agents changed these rows, together with the same number of others, such that they go
        with λ and the others or against them; or nothing in them is active. Where no row is
        sampled none is missed.
        """
        missed = OF_THREE * max((tensor.row for tensor in self.tensors), default=0.0)
        if missed == 0:
            return
        active = self.degree[0].sum(axis=-1)
        more = np.minimum(missed, self.parameters - active)
        mean = self.energies[0, 0] / np.maximum(1, active[0])
        kinds = [(others, sign) for others in range(len(mean)) for sign in (1, -1)]
        found = [self._with_rows(more, mean, others, sign) for others, sign in kinds]
        left = 1 - min(1.0, missed / max(1, self.parameters))
        unique = np.array([more[0] * mean * (others == 0) for others, _ in kinds])

        def extended(array: Array, unseen: Sequence[Array]) -> Array:
            return np.concatenate([array, unseen, array[:1] * left])

        self.degree, self.energies, self.pairs, self.realised = (
            extended(array, unseen)
            for array, unseen in zip(self._arrays(), zip(*found, strict=True), strict=True)
        )
        for place, factors in enumerate(self.unique):
            for factor, own in factors.items():
                factors[factor] = extended(own, own[0] + unique[:, place])

    def _arrays(self) -> tuple[Array, ...]:
        return self.degree, self.energies, self.pairs, self.realised

    def _with_rows(self, more: Array, mean: Array, others: int, sign: int) -> tuple[Array, ...]:
        """The sums of all sampled rows and some more.

        Args:
            more: ``[thresholds, N]`` parameters in these rows that an agent changed.
            mean: ``[N]`` τ² of each.
            others: that changed each of them too.
            sign: 1 if updates agree and λ takes effect, -1 if not.
        """
        degree, energies, pairs, realised = (array[0].copy() for array in self._arrays())
        added = more[0] * mean
        degree[:, :, others] += more
        energies[0] += added
        if others == 0:
            energies[1] += added
            energies[3] += added / len(mean)
            realised[0] *= energies[1] / np.maximum(energies[1] - added, TINY)
            realised[1] += more[0] * (sign > 0)
        else:
            both = np.minimum.outer(more[0], more[0]) * (1 - np.eye(len(mean)))
            dot, square = both * np.sqrt(np.outer(mean, mean)), both * mean[:, None]
            # A larger update of another agent may pull an agent twice as far, or the other way.
            energies[2] += added * (2 if sign > 0 else -1)
            energies[3] += added * sign
            pairs += np.stack((both, sign * dot, square, sign * both))
        return degree, energies, pairs, realised

    def _places(self, tensor: SampledTensor) -> list[int]:
        return [self.agents.index(agent_name(agent.id)) for agent in tensor.agents]

    def _weights(self, tensor: SampledTensor) -> Array:
        """By how much the sums of every group of rows enter those of the model."""
        if not tensor.rows.count:
            return np.ones((len(self.degree), 1))
        sizes = np.array(tensor.rows.numels, np.float64)
        return np.vstack([np.full(GROUPS, 1 / sizes.sum()), np.diag(1 / sizes)]) * tensor.numel


def _rounded(tensor: SampledTensor, degree: Array) -> TensorOverlap:
    """The counts of a tensor; an agent of weight 0 is listed and has no active parameter."""
    rows = [tuple(map(int, row)) for row in np.rint(degree)]
    found = dict(zip((agent.id for agent in tensor.agents), rows, strict=True))
    return TensorOverlap(
        name=tensor.merge.output_weight.name,
        numel=tensor.numel,
        agents=tuple(
            AgentCounts(
                model=agent_name(entry.id), overlap_degree=found.get(entry.id, (0,) * len(rows))
            )
            for entry in tensor.rows.group.non_base
        ),
    )


def _weighted(weights: Array, sums: npt.NDArray[Any]) -> Array:
    """``[replicates, groups]`` times ``[groups, …]``, without waking the threads of a BLAS."""
    return np.asarray(np.einsum("vg,g...->v...", weights, sums))
