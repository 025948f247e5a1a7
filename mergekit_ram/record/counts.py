"""The counts of a merge: received as its tensors are counted, or taken from an earlier record."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.errors import InputError, PlanError, warn
from mergekit_ram.models.groups import (
    AgentPlaces,
    Load,
    PlannedLoads,
    agent_places,
    agents_of,
    factor_of,
    loading_digest,
)
from mergekit_ram.names import labels
from mergekit_ram.overlap import AgentOverlap, OverlapStatistics, TensorOverlap
from mergekit_ram.record.check import differences, read_record
from mergekit_ram.record.contents import InputFiles, ModelRecord
from mergekit_ram.record.findings import findings_at_once
from mergekit_ram.record.schema import TensorRecord
from mergekit_ram.tensors import agent_name

LOG = logging.getLogger("mergekit_ram")

LOADING = "loading (its layers, agents, dtype or vocabulary)"
REMEDY = "Leave `statistics` out and the merge counts anew."


@dataclass(frozen=True)
class RecordedCounts:
    """Counts of the present plan, and the file that they were read from."""

    statistics: OverlapStatistics
    path: str


class OverlapCounter:
    """Receives the counts of one plan, all at once or tensor by tensor, and logs their sums.

    Args:
        merges: of every weight of the output, once.
        quiet: log nothing but warnings when the merge is done.
        recorded: counts of an earlier merge or inspection, which are not taken again.
    """

    def __init__(
        self,
        merges: Sequence[ExecuteMergeMethodTask],
        *,
        quiet: bool = False,
        recorded: RecordedCounts | None = None,
    ):
        self.merges = tuple(merges)
        self.quiet = quiet
        self.recorded = recorded
        self.statistics: OverlapStatistics | None = None
        self.lines: list[str] = []
        """What was logged of each agent when all was counted."""
        self._started = time.perf_counter()
        self._counts: dict[str, TensorOverlap | None] = {}
        # The multi-GPU executor merges in several threads.
        self._lock = threading.Lock()

    @property
    def counts_from(self) -> str | None:
        """The file of the recorded counts."""
        return self.recorded.path if self.recorded else None

    @property
    def seconds(self) -> float:
        """Since the plan was made."""
        return time.perf_counter() - self._started

    def add(self, name: str, counts: TensorOverlap | None) -> None:
        """Add the counts of one tensor; None of one that is copied."""
        with self._lock:
            self._counts[name] = counts
            is_last = self.statistics is None and len(self._counts) == len(self.merges)
        if is_last:
            ordered = (self._counts[merge.output_weight.name] for merge in self.merges)
            self.complete(filter(None, ordered))

    def complete(self, counted: Iterable[TensorOverlap]) -> OverlapStatistics:
        """Take the counts of all tensors, in the plan's order, and log them."""
        self.statistics = OverlapStatistics(tensors=tuple(counted))
        places = agent_places(self.merges)
        names = labels([agent.model for agent in self.statistics.agents])
        at_work: list[tuple[AgentOverlap, list[float]]] = []
        for name, agent in zip(names, self.statistics.agents, strict=True):
            working = places_at_work(places[agent.model])
            factors = [factor_of(merge, model, agent) for merge, model in working]
            self.lines.append(_agent_line(name, agent, factors))
            LOG.info("%s", self.lines[-1])
            if factors:
                at_work.append((agent, factors))
        for finding in findings_at_once(at_work):
            warn(finding.text)
        return self.statistics


def places_at_work(places: AgentPlaces) -> AgentPlaces:
    """The places where the agent takes part, and so has a λ."""
    return [(merge, model) for merge, model in places if merge.input_parameters[model]["weight"]]


def _agent_line(name: str, agent: AgentOverlap, factors: Sequence[float]) -> str:
    """A line on the changes of an agent and the λ of its unique parameters.

    Args:
        name: of the agent, short.
        agent: its counts over the whole model.
        factors: every λ that it has; empty where it takes no part.
    """
    if not factors:
        return f"agent {name}: takes no part, its weight is 0 everywhere"
    low, high = min(factors), max(factors)
    return (
        f"agent {name}: density {100 * agent.density:.2f} %, shared {agent.shared:,}, "
        f"unique {agent.unique:,}, ρ {agent.overlap_unique_ratio:.4g}, "
        f"λ {f'{low:.4f}' if low == high else f'{low:.4f} to {high:.4f}'}"
    )


def recorded_counts(
    merges: Sequence[ExecuteMergeMethodTask], planned: PlannedLoads
) -> RecordedCounts | None:
    """The counts that the parameter ``statistics`` points to; None where it is not given.

    Args:
        merges: of every weight of the output, once.
        planned: what they load.

    Raises:
        PlanError: the tensors are given different files.
        InputError: the file is no record, or not of these models, tensors, ε and weights.
    """
    paths = {merge.parameters["statistics"] for merge in merges}
    if paths == {None}:
        return None
    if len(paths) > 1:
        raise PlanError(
            "parameter 'statistics' must be the same file for all tensors; got "
            f"{', '.join(sorted(map(str, paths)))}"
        )
    path = Path(str(paths.pop()))
    record = read_record(path)
    start = f"statistics {path}: they are not those of this merge"
    if record.sample is not None:
        raise InputError(
            f"{start}: they are an estimate from {record.sample.fraction:g} of the rows. {REMEDY}"
        )
    was = _identity_of_models(record.models)
    now = _identity_of_models(InputFiles(planned).models)
    recorded = {tensor.name: tensor for tensor in record.tensors}
    for tensor in record.tensors:
        weights = {f"weight of {agent.model}": agent.weight for agent in tensor.agents}
        identity = {"epsilon": tensor.epsilon, LOADING: tensor.loading, **weights}
        was[f"tensor {tensor.name}"] = identity
    for merge in merges:
        name = merge.output_weight.name
        # Buffers of integers and weights that no model has are copied, not counted.
        if name in recorded or not merge.output_weight.optional:
            now[f"tensor {name}"] = _identity(merge, planned[name], recorded.get(name))
    for place, before, after in differences(was, now):
        if before is None or after is None:
            said = "is not in them" if before is None else "is not merged now"
        else:
            said = f"was {before}, and is {after} now"
        raise InputError(f"{start}: {', '.join(place)} {said}. {REMEDY}")
    return RecordedCounts(record.statistics(), str(path))


Identity = dict[str, Any]
"""Everything that counts depend on, by model or tensor."""


def _identity_of_models(models: Sequence[ModelRecord]) -> Identity:
    return {
        f"model {model.model}": {file.name: file.model_dump() for file in model.files}
        for model in models
    }


def _identity(
    merge: ExecuteMergeMethodTask, loads: Sequence[Load], recorded: TensorRecord | None
) -> Identity:
    """The identity of a tensor that is merged now.

    An agent that has no such tensor is in no count of it; one that has it must be.
    """
    counted = {agent.model for agent in recorded.agents} if recorded else set()
    counted |= {load.model for load in loads if _has_tensor(load)}
    weights = {
        f"weight of {agent_name(model)}": merge.input_parameters[model]["weight"]
        for model in agents_of(merge)
        if agent_name(model) in counted
    }
    return {
        "epsilon": merge.parameters["epsilon"],
        LOADING: loading_digest(merge, loads),
        **weights,
    }


def _has_tensor(load: Load) -> bool:
    return not load.optional or any(name in load.index.tensor_paths for name in load.names)
