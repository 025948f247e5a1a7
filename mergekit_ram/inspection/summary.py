"""From what was seen of every tensor to the figures of the whole model, and their errors.

Everything that is seen is a sum over parameters. With a sample, a tensor's sums stand for the
whole tensor, and every figure is computed again without each group of rows for its interval.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.sampling import GROUPS, Sample
from mergekit_ram.kernels.energies import Measures, Realised
from mergekit_ram.merges.groups import agents_of, factor_of
from mergekit_ram.merges.loads import PlannedLoads
from mergekit_ram.methods import agent_name
from mergekit_ram.overlap import AgentCounts, AgentOverlap, OverlapStatistics, TensorOverlap
from mergekit_ram.record.build import agent_record, layer_records, tensor_records
from mergekit_ram.record.schema import (
    AgentRecord,
    Interval,
    Intervals,
    LayerRecord,
    PairRecord,
    TensorRecord,
    ThresholdAgent,
    ThresholdRecord,
)

GIVEN_FIELDS = frozenset({"weight", "numel", "epsilon"})
"""Numbers of a record that are known and not estimated."""

SHARES = frozenset(
    {
        "change",
        "density",
        "jaccard",
        "overlap_share",
        "rescale_effect",
        "sign_conflicts",
        "unique_share",
    }
)
SIGNED = frozenset({"shared_energy", "whole_rescale", "realised_rescale"}) | {
    f"retained{method}" for method in ("", "_ram", "_ram_plus", "_mean")
}
"""Figures that can be below zero: agents may pull against each other."""

Array = npt.NDArray[np.float64]
Record = TypeVar("Record", AgentRecord, LayerRecord, PairRecord, TensorRecord, ThresholdAgent)


@dataclass
class Part:
    """What was seen of one tensor, or of one group of its rows."""

    counts: TensorOverlap
    thresholds: tuple[TensorOverlap, ...]
    measured: list[str]
    """The agents that ``measures`` and ``realised`` are about; those of weight 0 are not."""
    measures: Measures
    realised: Realised | None = None


@dataclass
class Stratum:
    """One tensor of the output, seen whole (one part) or in groups of rows."""

    merge: ExecuteMergeMethodTask
    numel: int
    parts: list[Part]

    @property
    def name(self) -> str:
        return self.merge.output_weight.name

    def chosen(self, without: int | None) -> tuple[list[Part], float]:
        """The parts but one, and how many times their parameters make the whole tensor."""
        parts = self.parts
        if without is not None and len(parts) > 1:
            parts = [part for number, part in enumerate(parts) if number != without]
        seen = sum(part.counts.numel for part in parts)
        return parts, self.numel / seen if seen else 1.0


class Totals:
    """Sums over a model for ``agents``, in float64, which is exact for counts."""

    def __init__(self, agents: Sequence[str], thresholds: int):
        n = len(agents)
        self._place = {name: number for number, name in enumerate(agents)}
        self.parameters = 0.0
        self.degree = np.zeros((n, n))
        self.threshold_degree = np.zeros((thresholds, n, n))
        self.measures = {
            field.name: np.zeros((n,) if field.name.endswith("energy") else (n, n))
            for field in fields(Measures)
        }
        self.realised = {field.name: np.zeros(n) for field in fields(Realised)}
        self.is_realised = True

    def add(self, stratum: Stratum, without: int | None) -> None:
        """Add one tensor; ``without`` leaves a group of rows out."""
        parts, times = stratum.chosen(without)
        self.parameters += stratum.numel
        for part in parts:
            _add_degrees(self.degree, part.counts, self._place, times)
            for total, counts in zip(self.threshold_degree, part.thresholds, strict=True):
                _add_degrees(total, counts, self._place, times)
            places = [self._place[name] for name in part.measured]
            _add_sums(self.measures, part.measures, places, times)
            self.is_realised &= part.realised is not None
            if part.realised is not None:
                _add_sums(self.realised, part.realised, places, times)

    def overlap(self, name: str, degree: Array) -> AgentOverlap:
        """An agent's counts, rounded once where they are estimates."""
        row = degree[self._place[name]]
        return AgentOverlap(
            model=name,
            overlap_degree=tuple(int(value) for value in np.rint(row)),
            parameters=round(self.parameters),
        )


def _add_degrees(total: Array, counts: TensorOverlap, place: dict[str, int], times: float) -> None:
    for agent in counts.agents:
        total[place[agent.model], : len(agent.overlap_degree)] += times * np.array(
            agent.overlap_degree, np.float64
        )


def _add_sums(
    total: dict[str, Array], sums: Measures | Realised, places: list[int], times: float
) -> None:
    for name, array in total.items():
        found = getattr(sums, name).numpy() * times
        array[np.ix_(*([places] * array.ndim))] += found


class Summary:
    """The figures of one inspection.

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
        return OverlapStatistics(tensors=tuple(map(_whole_tensor, self._strata)))

    def agents(self) -> tuple[AgentRecord, ...]:
        return self._with_intervals(self._agents)

    def pairs(self) -> tuple[PairRecord, ...]:
        return self._with_intervals(self._pairs)

    def thresholds(self) -> tuple[ThresholdRecord, ...] | None:
        """The agents at every ε in ascending order; None where no further one was asked for."""
        if not self._epsilons:
            return None
        found = self._with_intervals(self._threshold_agents)
        size = len(self._names)
        return tuple(
            ThresholdRecord(epsilon=epsilon, agents=found[number * size : (number + 1) * size])
            for number, epsilon in enumerate(self._epsilons)
        )

    def tensors(self) -> tuple[TensorRecord, ...]:
        return self._with_intervals(
            lambda without: [self._tensor_without(record, without) for record in self._tensors]
        )

    @functools.cached_property
    def _tensors(self) -> tuple[TensorRecord, ...]:
        return tensor_records(self._merges, self._loads, self.statistics)

    @functools.cached_property
    def _by_name(self) -> dict[str, Stratum]:
        return {stratum.name: stratum for stratum in self._strata}

    def layers(self) -> tuple[LayerRecord, ...]:
        """The change of every layer."""
        return self._with_intervals(self._layers)

    def _layers(self, without: int | None) -> list[LayerRecord]:
        return list(layer_records([self._tensor_without(r, without) for r in self._tensors]))

    def _tensor_without(self, record: TensorRecord, without: int | None) -> TensorRecord:
        if without is None:
            return record
        change = _changed(self._by_name[record.name], without) / max(1, record.numel)
        return record.model_copy(update={"change": change})

    @functools.lru_cache(maxsize=GROUPS + 1)  # noqa: B019  # as long-lived as what it caches
    def _totals(self, without: int | None) -> Totals:
        total = Totals(self._names, len(self._epsilons))
        for stratum in self._strata:
            total.add(stratum, without)
        return total

    def _with_intervals(self, records: Callable[[int | None], list[Record]]) -> tuple[Record, ...]:
        whole = records(None)
        if self._sample is None:
            return tuple(whole)
        left = [records(without) for without in range(GROUPS)]
        return tuple(
            record.model_copy(update={"interval": self._intervals(record, columns)})
            for record, columns in zip(whole, zip(*left, strict=True), strict=True)
        )

    def _intervals(self, record: Record, left: Sequence[Record]) -> Intervals:
        assert self._sample is not None
        found: Intervals = {}
        others = [dict(_numbers(other)) for other in left]
        for name, value in _numbers(record):
            column = [numbers[name] for numbers in others if name in numbers]
            if len(column) == len(others):
                low, high = self._sample.interval(value, column)
                bottom, top = _bounds(name)
                found[name] = (max(bottom, low), min(top, high))
        return found

    def _agents(self, without: int | None) -> list[AgentRecord]:
        total = self._totals(without)
        return [self._agent(name, total, without) for name in self._names]

    def _agent(self, name: str, total: Totals, without: int | None) -> AgentRecord:
        overlap = total.overlap(name, total.degree)
        place = self._names.index(name)
        energy, unique, shared, mean = (
            float(total.measures[f"{kind}energy"][place])
            for kind in ("", "unique_", "shared_", "mean_")
        )
        kept, kept_plain = self._unique_kept(name, overlap, without)
        retained = {
            "retained_ram": _divided(kept_plain + shared, energy),
            "retained_ram_plus": _divided(kept + shared, energy),
            "retained_mean": _divided(mean, energy),
        }
        by_method = "retained_ram" if self._method == "ram" else "retained_ram_plus"
        step = float(total.realised["step"][place]) if total.is_realised else None
        changed = float(total.realised["changed"][place]) if total.is_realised else None
        return agent_record(
            overlap,
            self._merges,
            energy=energy,
            unique_energy=unique,
            shared_energy=shared,
            retained=retained[by_method],
            **retained,
            whole_rescale=_divided(energy - shared, kept_plain),
            realised_rescale=_divided(step, kept_plain),
            rescale_effect=_divided(changed, overlap.unique),
        )

    def _unique_kept(
        self, name: str, overlap: AgentOverlap, without: int | None
    ) -> tuple[float, float]:
        """Σ s w λ τ² over the unique parameters, and the same with λ = 1."""
        kept = plain = 0.0
        for stratum in self._strata:
            model = _model_of(stratum.merge, name)
            if model is None:
                continue
            parts, times = stratum.chosen(without)
            energy = times * sum(
                float(part.measures.unique_energy[part.measured.index(name)])
                for part in parts
                if name in part.measured
            )
            own = stratum.merge.input_parameters[model]
            energy *= stratum.merge.parameters["scale"] * own["weight"]
            plain += energy
            kept += energy * factor_of(stratum.merge, model, overlap)
        return kept, plain

    def _pairs(self, without: int | None) -> list[PairRecord]:
        total = self._totals(without)
        sums = total.measures
        active = total.degree.sum(axis=1)
        return [
            PairRecord(
                first=self._names[a],
                second=self._names[b],
                both=round(float(sums["both"][a, b])),
                jaccard=_divided(sums["both"][a, b], active[a] + active[b] - sums["both"][a, b]),
                cosine=_divided(
                    sums["dot"][a, b], float(np.sqrt(sums["square"][a, b] * sums["square"][b, a]))
                ),
                sign_conflicts=_divided(
                    (sums["both"][a, b] - sums["agreement"][a, b]) / 2, sums["both"][a, b]
                ),
            )
            for a in range(len(self._names))
            for b in range(a + 1, len(self._names))
        ]

    def _threshold_agents(self, without: int | None) -> list[ThresholdAgent]:
        total = self._totals(without)
        return [
            _threshold_agent(total.overlap(name, degree), *self._usual_clip)
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


def _threshold_agent(overlap: AgentOverlap, r: float, alpha: float) -> ThresholdAgent:
    return ThresholdAgent(
        model=overlap.model,
        active=overlap.active,
        shared=overlap.shared,
        unique=overlap.unique,
        density=overlap.density,
        unique_share=_divided(overlap.unique, overlap.active),
        overlap_unique_ratio=overlap.finite_ratio,
        rescale=overlap.rescale(r, alpha),
    )


def _whole_tensor(stratum: Stratum) -> TensorOverlap:
    parts, times = stratum.chosen(None)
    agents = []
    for number, agent in enumerate(parts[0].counts.agents):
        rows = [part.counts.agents[number].overlap_degree for part in parts]
        degree = tuple(round(times * sum(column)) for column in zip(*rows, strict=True))
        agents.append(AgentCounts(model=agent.model, overlap_degree=degree))
    return TensorOverlap(name=stratum.name, numel=stratum.numel, agents=tuple(agents))


def _changed(stratum: Stratum, without: int) -> float:
    parts, times = stratum.chosen(without)
    return times * sum(part.counts.changed for part in parts)


def _model_of(merge: ExecuteMergeMethodTask, name: str) -> Any:
    return next((model for model in agents_of(merge) if agent_name(model) == name), None)


def _numbers(record: Record) -> Iterator[tuple[str, float]]:
    """The estimated fields by name, and those of a list by name and place."""
    for name in type(record).model_fields.keys() - GIVEN_FIELDS:
        value = getattr(record, name)
        if name == "overlap_share":
            yield from ((f"{name}.{place}", share) for place, share in enumerate(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _bounds(name: str) -> Interval:
    """What a figure can be at all: a share, an angle's cosine, a count or an energy."""
    if name == "cosine":
        return -1.0, 1.0
    if name.split(".")[0] in SHARES:
        return 0.0, 1.0
    return (-math.inf if name in SIGNED else 0.0), math.inf


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None or by == 0 else float(value / by)
