"""What was seen of every tensor, and its sums over the whole model.

Everything that is seen is a sum over parameters. Of a sample, a tensor's sums stand for the
whole tensor, and leaving a group of its rows out gives them once more, for the errors. Such
*versions* of a sum lie on the first axis of an array: the first is that of all that was seen, each
of the others lacks one group.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.kernels.direction_sums import DirectionSums
from mergekit_ram.kernels.energies import ENERGIES, PAIRS, REALISED, Observed
from mergekit_ram.overlap import AgentCounts, AgentOverlap, TensorOverlap
from mergekit_ram.tensors import agent_name

Array = npt.NDArray[np.float64]

TOGETHER = 32
"""Tensors whose sums are added up at once."""

KEPT_SHARES = 1024
"""Sizes of tensors for which it is kept how their groups enter sums."""


@dataclass
class Stratum:
    """One tensor of the output, seen whole or in groups of rows."""

    merge: ExecuteMergeMethodTask
    numel: int
    agents: tuple[str, ...]
    """All that have this tensor."""
    models: tuple[ModelReference, ...]
    """Those of them that what was seen is about; those of weight 0 are not."""
    seen: Observed
    groups: tuple[int, ...] = ()
    """Numbers of its groups of rows; none where it was seen whole."""
    directions: DirectionSums | None = None
    """Of the agents at work."""
    realised: Array | None = None
    """:data:`REALISED`, ``[groups, 2, agents at work]``."""

    @property
    def name(self) -> str:
        return self.merge.output_weight.name

    @functools.cached_property
    def at_work(self) -> tuple[str, ...]:
        """The names of the agents that what was seen is about."""
        return tuple(map(agent_name, self.models))

    def shares(self, versions: int) -> Array:
        """By which every group's sums enter those of the whole tensor, ``[versions, groups]``."""
        return _shares(self.numel, self.seen.numels, self.groups, versions)

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

    def unique_energy(self, place: int, versions: int) -> Array:
        """Σ τ² over the unique parameters of an agent at work, ``[versions]``."""
        energies = self.seen.energies[:, ENERGIES.index("unique_energy")]
        return np.asarray(self.shares(versions) @ energies[:, place])


@dataclass(frozen=True)
class Spread:
    """What the estimates of some tensors rest on."""

    groups: int
    """In how many rows were drawn."""
    parameters: int
    """That were looked at, in tensors that were not seen whole."""

    @classmethod
    def of(cls, strata: Sequence[Stratum]) -> Spread:
        return cls(
            len({group for stratum in strata for group in stratum.groups}),
            sum(sum(stratum.seen.numels) for stratum in strata if stratum.groups),
        )


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
        for at_work, own in itertools.groupby(strata, lambda stratum: stratum.at_work):
            alike, places = list(own), [agents.index(name) for name in at_work]
            for first in range(0, len(alike), TOGETHER):
                self._add(alike[first : first + TOGETHER], places)

    def _add(self, strata: Sequence[Stratum], places: list[int]) -> None:
        """Sums of several tensors at once, since a call takes longer than those of one."""
        shares = np.concatenate([stratum.shares(len(self._degree)) for stratum in strata], axis=1)

        def weighted(sums: Iterable[npt.NDArray[Any]]) -> Array:
            return _weighted(shares, np.concatenate([*sums]))

        rows, columns = np.ix_(places, places)
        seen = [stratum.seen for stratum in strata]
        self._degree[:, :, places, : len(places)] += weighted(own.degree for own in seen)
        self._energies[:, :, places] += weighted(own.energies for own in seen)
        self._pairs[:, :, rows, columns] += weighted(own.pairs for own in seen)
        if self.is_realised:
            realised = (stratum.realised for stratum in strata)
            self._realised[:, :, places] += weighted(own for own in realised if own is not None)
        if self.directions is not None:
            for stratum in strata:
                if stratum.directions is not None:
                    self.directions.add(stratum.directions, places)

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


@functools.lru_cache(maxsize=KEPT_SHARES)
def _shares(numel: int, numels: tuple[int, ...], groups: tuple[int, ...], versions: int) -> Array:
    """See :meth:`Stratum.shares`; most layers have tensors of the same sizes."""
    sizes = np.array(numels, np.float64)
    shares = np.ones((versions, len(sizes)))
    if versions > 1 and groups:
        shares[1 + np.array(groups), np.arange(len(groups))] = 0.0
    looked_at = shares @ sizes
    times = np.divide(numel, looked_at, out=np.ones(versions), where=looked_at > 0)
    found = shares * times[:, None]
    found.flags.writeable = False
    return np.asarray(found)


def _weighted(shares: Array, sums: npt.NDArray[Any]) -> Array:
    """``[versions, groups]`` times ``[groups, …]``; a BLAS would wake its threads for so little."""
    return np.asarray(np.einsum("vg,g...->v...", shares, sums))
