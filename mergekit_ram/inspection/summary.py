"""From what was seen of every tensor to the records of the whole model."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.figures import (
    agent_figures,
    pair_figures,
    threshold_figures,
    unique_kept,
)
from mergekit_ram.inspection.intervals import with_intervals
from mergekit_ram.inspection.sampling import GROUPS, Sample
from mergekit_ram.inspection.strata import Stratum, Totals
from mergekit_ram.merges.groups import agents_of
from mergekit_ram.merges.loads import PlannedLoads
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.record.build import layer_records, tensor_records
from mergekit_ram.record.schema import (
    AgentRecord,
    LayerRecord,
    PairRecord,
    TensorRecord,
    ThresholdAgent,
    ThresholdRecord,
)
from mergekit_ram.tensors import agent_name


class Summary:
    """The records of one inspection.

    Args:
        merges: of every weight of the output, once.
        loads: what they load.
        strata: what was seen of each that is no buffer.
        epsilons: the further thresholds.
        sample: how the strata were drawn, if they were.
        method: as configured; ``retained`` is that of ``ram`` or of ``ram_plus``.
    """

    def __init__(
        self,
        merges: Sequence[ExecuteMergeMethodTask],
        loads: PlannedLoads,
        strata: Sequence[Stratum],
        epsilons: tuple[float, ...],
        sample: Sample | None,
        method: str,
    ):
        self._merges = merges
        self._loads = loads
        self._strata = strata
        self._epsilons = epsilons
        self._sample = sample
        self._method = method
        names = (agent_name(model) for merge in merges for model in agents_of(merge))
        self._names = tuple(dict.fromkeys(names))

    @property
    def parameters(self) -> int:
        """Of the output."""
        return sum(stratum.numel for stratum in self._strata)

    @functools.cached_property
    def statistics(self) -> OverlapStatistics:
        """The counts of every tensor, rounded where they are estimates."""
        return OverlapStatistics(tensors=tuple(stratum.counts() for stratum in self._strata))

    def agents(self) -> tuple[AgentRecord, ...]:
        return with_intervals(self._sample, self._agents)

    def pairs(self) -> tuple[PairRecord, ...]:
        return with_intervals(
            self._sample, lambda without: list(pair_figures(self._names, self._totals(without)))
        )

    def thresholds(self) -> tuple[ThresholdRecord, ...] | None:
        """The agents at every ε in ascending order; None where no further one was asked for."""
        if not self._epsilons:
            return None
        found = with_intervals(self._sample, self._threshold_agents)
        size = len(self._names)
        return tuple(
            ThresholdRecord(epsilon=epsilon, agents=found[number * size : (number + 1) * size])
            for number, epsilon in enumerate(self._epsilons)
        )

    def tensors(self) -> tuple[TensorRecord, ...]:
        return with_intervals(self._sample, self._tensors)

    def layers(self) -> tuple[LayerRecord, ...]:
        """The change of every layer."""
        return with_intervals(self._sample, lambda without: layer_records(self._tensors(without)))

    @functools.lru_cache(maxsize=GROUPS + 1)  # noqa: B019  # as long-lived as what it caches
    def _totals(self, without: int | None) -> Totals:
        total = Totals(self._names, len(self._epsilons))
        for stratum in self._strata:
            total.add(stratum, without)
        return total

    def _agents(self, without: int | None) -> list[AgentRecord]:
        total = self._totals(without)
        return [
            agent_figures(
                name,
                place,
                total,
                self._merges,
                unique_kept(self._strata, total.overlap(name, total.degree), without),
                self._method,
            )
            for place, name in enumerate(self._names)
        ]

    def _threshold_agents(self, without: int | None) -> list[ThresholdAgent]:
        total = self._totals(without)
        return [
            threshold_figures(total.overlap(name, degree), *self._usual_clip)
            for degree in total.threshold_degree
            for name in self._names
        ]

    @functools.cached_property
    def _usual_clip(self) -> tuple[float, float]:
        """r and α of most parameters."""
        numels: Counter[tuple[float, float]] = Counter()
        for stratum in self._strata:
            settings = stratum.merge.parameters
            numels[settings["r"], settings["alpha"]] += stratum.numel
        return numels.most_common(1)[0][0]

    def _tensors(self, without: int | None) -> tuple[TensorRecord, ...]:
        if without is None:
            return self._whole_tensors
        return tuple(
            record.model_copy(update={"change": stratum.change(without)})
            for record, stratum in zip(self._whole_tensors, self._strata, strict=True)
        )

    @functools.cached_property
    def _whole_tensors(self) -> tuple[TensorRecord, ...]:
        return tensor_records(self._merges, self._loads, self.statistics)
