"""From what was seen of every tensor to the records of the whole model."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.figures import (
    UniqueEnergy,
    agent_figures,
    pair_figures,
    rescaled_anew,
)
from mergekit_ram.inspection.intervals import with_change_intervals, with_intervals
from mergekit_ram.inspection.sampling import GROUPS, Sample
from mergekit_ram.inspection.strata import Array, Spread, Stratum, Totals
from mergekit_ram.merges.groups import agent_places
from mergekit_ram.merges.loads import PlannedLoads
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.record.build import Place, counted_fields, layer_records
from mergekit_ram.record.merge import factors, tensor_records
from mergekit_ram.record.schema import (
    AgentRecord,
    LayerRecord,
    PairRecord,
    TensorRecord,
    ThresholdAgent,
    ThresholdRecord,
)


class Summary:
    """The records of one inspection.

    Args:
        merges: of every weight of the output, once.
        loads: what they load.
        strata: what was seen of each that is no buffer.
        thresholds: the further ε, in the order in which they were counted.
        sample: how the strata were drawn, if they were.
        method: as configured; ``retained`` is that of one of our methods.
    """

    def __init__(
        self,
        merges: Sequence[ExecuteMergeMethodTask],
        loads: PlannedLoads,
        strata: Sequence[Stratum],
        thresholds: tuple[float, ...],
        sample: Sample | None,
        method: str,
    ):
        self._merges = merges
        self._loads = loads
        self._strata = strata
        self._thresholds = thresholds
        self._sample = sample
        self._method = method
        self._versions = 1 if sample is None else 1 + GROUPS
        self._places = agent_places(merges)
        self._names = tuple(self._places)

    @property
    def parameters(self) -> int:
        """Of the output."""
        return sum(stratum.numel for stratum in self._strata)

    @functools.cached_property
    def statistics(self) -> OverlapStatistics:
        """The counts of every tensor, rounded where they are estimates."""
        return OverlapStatistics(tensors=tuple(stratum.counts() for stratum in self._strata))

    def agents(self) -> tuple[AgentRecord, ...]:
        return with_intervals(self._sample, self._all_filled, self._agents)

    def pairs(self) -> tuple[PairRecord, ...]:
        return with_intervals(
            self._sample,
            self._all_filled,
            lambda version: list(pair_figures(self._names, self._total, version)),
        )

    def thresholds(self) -> tuple[ThresholdRecord, ...] | None:
        """The agents at every ε; None where no further one was asked for."""
        if not self._thresholds:
            return None
        found = with_intervals(self._sample, self._all_filled, self._threshold_agents)
        size = len(self._names)
        return tuple(
            ThresholdRecord(epsilon=epsilon, agents=found[number * size : (number + 1) * size])
            for number, epsilon in enumerate(self._thresholds)
        )

    def tensors(self) -> tuple[TensorRecord, ...]:
        seen = [Spread.of([stratum]) for stratum in self._strata]
        return with_change_intervals(self._sample, seen, self._tensors, self._changes)

    def layers(self) -> tuple[LayerRecord, ...]:
        """The change of every layer."""
        records = layer_records(self._tensors)
        places = {record.name: number for number, record in enumerate(records)}
        changes = np.zeros((self._versions, len(records)))
        own: list[list[Stratum]] = [[] for _ in records]
        for stratum, change in zip(self._strata, self._changes.T, strict=True):
            place = places[Place.of(stratum.name).layer]
            changes[:, place] += change * stratum.numel / max(1, records[place].numel)
            own[place].append(stratum)
        seen = [*map(Spread.of, own)]
        return with_change_intervals(self._sample, seen, records, changes)

    @functools.cached_property
    def _all_filled(self) -> int:
        """In how many groups rows of some tensor were drawn."""
        return Spread.of(self._strata).groups

    @functools.cached_property
    def _total(self) -> Totals:
        return Totals(self._names, self._strata, self._versions)

    @functools.cached_property
    def _unique(self) -> list[list[UniqueEnergy]]:
        return [UniqueEnergy.of(name, self._strata, self._versions) for name in self._names]

    def _agents(self, version: int) -> list[AgentRecord]:
        total = self._total
        records = []
        for place, name in enumerate(self._names):
            overlap = total.overlap(name, place, version)
            unique = self._unique[place]
            scaled = sum(own.rescaled(overlap, version) for own in unique)
            kept = scaled, sum(float(own.energy[version]) for own in unique)
            whole = total.overlap(name, place, 0)
            at_first = sum(own.rescaled(whole, version) for own in unique)
            sums = rescaled_anew(total.of_agent(place, version), kept, at_first)
            directions = None if total.directions is None else total.directions.of_agent(place)
            places = self._places[name]
            records.append(agent_figures(overlap, sums, places, kept, self._method, directions))
        return records

    def _threshold_agents(self, version: int) -> list[ThresholdAgent]:
        records = []
        for number in range(len(self._thresholds)):
            for place, name in enumerate(self._names):
                overlap = self._total.overlap(name, place, version, 1 + number)
                # As in the agents' own records, where λ may be given by hand or by tensor.
                rescale = factors(overlap, self._places[name])
                counted = counted_fields(ThresholdAgent, overlap)
                records.append(ThresholdAgent(model=name, rescale=rescale, **counted))
        return records

    @functools.cached_property
    def _tensors(self) -> tuple[TensorRecord, ...]:
        return tensor_records(self._merges, self._loads, self.statistics)

    @functools.cached_property
    def _changes(self) -> Array:
        """``[versions, tensors]``"""
        return np.stack([stratum.change(self._versions) for stratum in self._strata], axis=1)
