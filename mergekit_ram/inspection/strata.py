"""What was seen of every tensor, and its sums over the whole model.

Everything that is seen is a sum over parameters. Of a sample, a tensor's sums stand for the
whole tensor, and leaving a group of its rows out gives them once more, for the errors. Such
*versions* of a sum lie on the first axis of an array: the first is that of all that was seen, each
of the others lacks one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.kernels.direction_sums import DirectionSums
from mergekit_ram.kernels.sums import ENERGIES, PAIRS, REALISED, Observed
from mergekit_ram.merges.groups import agents_of
from mergekit_ram.overlap import AgentCounts, AgentOverlap, TensorOverlap
from mergekit_ram.tensors import agent_name

Array = npt.NDArray[np.float64]


@dataclass
class Stratum:
    """One tensor of the output, seen whole or in groups of rows."""

    merge: ExecuteMergeMethodTask
    numel: int
    agents: tuple[str, ...]
    """All that have this tensor."""
    at_work: tuple[str, ...]
    """Those of them that what was seen is about; those of weight 0 are not."""
    seen: Observed
    directions: DirectionSums | None = None
    """Of the agents at work."""
    realised: Array | None = None
    """:data:`REALISED`, ``[groups, 2, agents at work]``."""
    _shares: dict[int, Array] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.merge.output_weight.name

    def shares(self, versions: int) -> Array:
        """By which every group's sums enter those of the whole tensor, ``[versions, groups]``."""
        if versions not in self._shares:
            self._shares[versions] = self._reckoned_shares(versions)
        return self._shares[versions]

    def _reckoned_shares(self, versions: int) -> Array:
        numels = np.array(self.seen.numels, np.float64)
        shares = np.ones((versions, len(numels)))
        if len(numels) > 1:
            left = np.arange(min(versions - 1, len(numels)))
            shares[1 + left, left] = 0.0
        looked_at = shares @ numels
        times = np.divide(self.numel, looked_at, out=np.ones(versions), where=looked_at > 0)
        return np.asarray(shares * times[:, None])

    def counts(self) -> TensorOverlap:
        """The counts of the whole tensor, rounded where they are estimates."""
        degree = np.rint(_weighted(self.shares(1), self.seen.degree[:, 0])[0]).astype(int)
        rows = dict(zip(self.at_work, degree.tolist(), strict=True))
        nothing = [0] * len(self.at_work)
        return TensorOverlap(
            name=self.name,
            numel=self.numel,
            agents=tuple(
                AgentCounts(model=name, overlap_degree=tuple(rows.get(name, nothing)))
                for name in self.agents
            ),
        )

    def change(self, versions: int) -> Array:
        """Share of its parameters that some agent changed, ``[versions]``."""
        by_overlap = self.seen.degree[:, 0].sum(axis=1)
        # A parameter that k agents changed is counted once by each of them.
        changed = (by_overlap // np.arange(1, len(self.at_work) + 1)).sum(axis=1)
        return np.asarray(self.shares(versions) @ changed / max(1, self.numel))

    def unique_energy(self, agent: str, versions: int) -> Array:
        """Σ τ² over the unique parameters of an agent at work, ``[versions]``."""
        energies = self.seen.energies[:, ENERGIES.index("unique_energy")]
        return np.asarray(self.shares(versions) @ energies[:, self.at_work.index(agent)])

    def model_of(self, agent: str) -> ModelReference:
        """The model of that name, which has this tensor."""
        return next(model for model in agents_of(self.merge) if agent_name(model) == agent)


class Totals:
    """Sums over a model for N ``agents``, in float64, which is exact for counts.

    Args:
        agents: of the whole model.
        strata: its tensors, at least one.
        versions: how many of every sum.
    """

    def __init__(self, agents: Sequence[str], strata: Sequence[Stratum], versions: int):
        n = len(agents)
        self.parameters = sum(stratum.numel for stratum in strata)
        self.is_realised = all(stratum.realised is not None for stratum in strata)
        thresholds = strata[0].seen.degree.shape[1]
        self._degree = np.zeros((versions, thresholds, n, n))
        self._energies = np.zeros((versions, len(ENERGIES), n))
        self._pairs = np.zeros((versions, len(PAIRS), n, n))
        self._realised = np.zeros((versions, len(REALISED), n))
        has_directions = all(stratum.directions is not None for stratum in strata)
        self.directions = DirectionSums.zeros(n) if has_directions else None
        """Of the whole model, where all of it was measured."""
        for stratum in strata:
            self._add(stratum, [agents.index(name) for name in stratum.at_work])

    def _add(self, stratum: Stratum, places: list[int]) -> None:
        shares, seen = stratum.shares(len(self._degree)), stratum.seen
        rows, columns = np.ix_(places, places)
        self._degree[:, :, places, : len(places)] += _weighted(shares, seen.degree)
        self._energies[:, :, places] += _weighted(shares, seen.energies)
        self._pairs[:, :, rows, columns] += _weighted(shares, seen.pairs)
        if self.directions is not None and stratum.directions is not None:
            self.directions.add(stratum.directions, places)
        if stratum.realised is not None:
            self._realised[:, :, places] += _weighted(shares, stratum.realised)

    def overlap(self, agent: str, place: int, version: int, threshold: int = 0) -> AgentOverlap:
        """An agent's counts, rounded once where they are estimates."""
        return AgentOverlap(
            model=agent,
            overlap_degree=tuple(map(int, np.rint(self._degree[version, threshold, place]))),
            parameters=self.parameters,
        )

    def active(self, version: int) -> Array:
        """Active parameters of every agent, ``[N]``."""
        return np.asarray(self._degree[version, 0].sum(axis=1))

    def pairs(self, version: int) -> dict[str, Array]:
        """The sums of pairs by name, ``[N, N]``."""
        return dict(zip(PAIRS, self._pairs[version], strict=True))

    def of_agent(self, place: int, version: int) -> dict[str, float]:
        """An agent's own sums by name; those of what was realised only if all was."""
        sums = dict(zip(ENERGIES, self._energies[version, :, place].tolist(), strict=True))
        if self.is_realised:
            sums |= zip(REALISED, self._realised[version, :, place].tolist(), strict=True)
        return sums


def _weighted(shares: Array, sums: npt.NDArray[Any]) -> Array:
    """``[versions, groups]`` times ``[groups, …]``; a BLAS would wake its threads for so little."""
    return np.asarray(np.einsum("vg,g...->v...", shares, sums))
