"""What was seen of every tensor, and its sums over the whole model.

Everything that is seen is a sum over parameters. Of a sample, a tensor's sums stand for the
whole tensor, and leaving a group of its rows out gives them once more, for the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.kernels.energies import Measures, Realised
from mergekit_ram.merges.groups import agents_of
from mergekit_ram.overlap import AgentCounts, AgentOverlap, TensorOverlap
from mergekit_ram.tensors import agent_name

Array = npt.NDArray[np.float64]


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

    def counts(self) -> TensorOverlap:
        """The counts of the whole tensor, rounded where they are estimates."""
        parts, times = self.chosen(None)
        agents = []
        for number, agent in enumerate(parts[0].counts.agents):
            rows = [part.counts.agents[number].overlap_degree for part in parts]
            degree = tuple(round(times * sum(column)) for column in zip(*rows, strict=True))
            agents.append(AgentCounts(model=agent.model, overlap_degree=degree))
        return TensorOverlap(name=self.name, numel=self.numel, agents=tuple(agents))

    def change(self, without: int | None) -> float:
        """Share of its parameters that some agent changed."""
        parts, times = self.chosen(without)
        return times * sum(part.counts.changed for part in parts) / max(1, self.numel)

    def unique_energy(self, agent: str, without: int | None) -> float:
        """Σ τ² over the unique parameters of one agent; 0 where it takes no part."""
        parts, times = self.chosen(without)
        return times * sum(
            float(part.measures.unique_energy[part.measured.index(agent)])
            for part in parts
            if agent in part.measured
        )

    def model_of(self, agent: str) -> ModelReference | None:
        """The model of that name, where it has this tensor."""
        return next((m for m in agents_of(self.merge) if agent_name(m) == agent), None)


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
