"""Record what a merge counted: ``ram_overlap.json`` in its output folder."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.models.groups import (
    AgentPlaces,
    PlannedLoads,
    PlannedOutput,
    agent_places,
    agents_of,
    factor_of,
    loading_digest,
)
from mergekit_ram.overlap import AgentOverlap, OverlapStatistics, TensorOverlap
from mergekit_ram.record.contents import InputFiles, written_files
from mergekit_ram.record.counts import OverlapCounter, places_at_work
from mergekit_ram.record.findings import findings_of, noted
from mergekit_ram.record.layers import layer_records, setting
from mergekit_ram.record.schema import (
    RECORD_NAME,
    AgentRecord,
    Finding,
    OverlapRecord,
    Setting,
    Settings,
    TensorAgent,
    TensorRecord,
    Versions,
)
from mergekit_ram.record.verdict import verdict_of
from mergekit_ram.tensors import agent_name
from mergekit_ram.text import say

LOG = logging.getLogger("mergekit_ram")

WARNED_OF = frozenset({"equals-base", "dense-agent", "large-rescale"})
"""Findings that were warned of as soon as all was counted."""


class MergeRecorder:
    """Writes the record of one plan when its last weight is written.

    Args:
        method: the merge method.
        counter: of the plan.
        output: what the plan reads and writes, and warned of.

    Raises:
        InputError: a model's file is missing or broken.
    """

    def __init__(self, method: str, counter: OverlapCounter, output: PlannedOutput):
        self.method = method
        self.counter = counter
        self.output = output
        # Looked at now, since files may be gone or others when the merge is done.
        self.inputs = InputFiles(output.loads)

    @functools.cached_property
    def record(self) -> OverlapRecord | None:
        """The record of the merge as far as it is when first asked for; None without counts."""
        statistics, merges = self.counter.statistics, self.counter.merges
        if statistics is None:
            return None
        places = agent_places(merges)
        tensors = tensor_records(merges, self.output.loads, statistics)
        return self.composed(
            kind="merge",
            merge_method=self.method,
            settings=settings_record(merges),
            agents=tuple(agent_record(agent, places[agent.model]) for agent in statistics.agents),
            tensors=tensors,
            layers=layer_records(tensors),
            seconds=round(self.counter.seconds, 3),
            counts_from=self.counter.counts_from,
        )

    def composed(self, findings: Iterable[Finding] = (), **given: Any) -> OverlapRecord:
        """A record of the plan from what is ``given``.

        Args:
            findings: that do not follow from the record's figures.
            given: fields of the record.
        """
        merges = self.counter.merges
        record = OverlapRecord(
            base=", ".join(dict.fromkeys(str(merge.base_model) for merge in merges)),
            epsilon=given["settings"].epsilon,
            parameters=sum(tensor.numel for tensor in given["tensors"]),
            out_dtype=", ".join(self.output.dtypes),
            models=self.inputs.models,
            versions=versions(),
            **given,
        )
        found = (*noted(self.output.notes), *findings, *findings_of(record))
        return record.model_copy(update={"findings": found, "verdict": verdict_of(record)})

    def write(self, folder: str) -> None:
        """Write the record into the folder of the merged model, and log its agents and findings.

        Raises:
            OSError: it cannot be written.
        """
        if self.record is not None:
            record = self.record.model_copy(update={"written": written_files(Path(folder))})
            (Path(folder) / RECORD_NAME).write_text(record.to_json(), encoding="utf-8")
            if not self.counter.quiet:
                # The agents were told of by INFO as soon as all was counted.
                lines = [] if LOG.isEnabledFor(logging.INFO) else self.counter.lines
                found = [f for f in record.findings if f.code not in WARNED_OF]
                for line in (*lines, *(f"finding: {finding.text}" for finding in found)):
                    say(line)


def versions() -> Versions:
    """The installed versions that compute the record."""
    return Versions(**{name: version(name) for name in Versions.model_fields})


def settings_record(merges: Sequence[ExecuteMergeMethodTask]) -> Settings:
    """The parameters that are shared by a tensor's models."""

    def values(name: str) -> Setting | None:
        found = [merge.parameters[name] for merge in merges if name in merge.parameters]
        return setting(found) if found else None

    return Settings.model_validate({name: values(name) for name in Settings.model_fields})


def tensor_records(
    merges: Iterable[ExecuteMergeMethodTask],
    planned: PlannedLoads,
    statistics: OverlapStatistics,
) -> tuple[TensorRecord, ...]:
    """The counts of every tensor, with the λ_t that holds there."""
    by_name = {merge.output_weight.name: merge for merge in merges}
    return tuple(
        TensorRecord(
            name=tensor.name,
            numel=tensor.numel,
            epsilon=by_name[tensor.name].parameters["epsilon"],
            agents=tuple(_tensor_agents(by_name[tensor.name], tensor, statistics)),
            loading=loading_digest(by_name[tensor.name], planned[tensor.name]),
        )
        for tensor in statistics.tensors
    )


def _tensor_agents(
    merge: ExecuteMergeMethodTask, counts: TensorOverlap, statistics: OverlapStatistics
) -> Iterator[TensorAgent]:
    models = {agent_name(model): model for model in agents_of(merge)}
    for agent in counts.agents:
        model = models[agent.model]
        yield TensorAgent(
            model=agent.model,
            weight=merge.input_parameters[model]["weight"],
            overlap_degree=agent.overlap_degree,
            rescale=factor_of(merge, model, statistics.agent(agent.model)),
        )


def agent_record(agent: AgentOverlap, places: AgentPlaces, **more: Any) -> AgentRecord:
    """An agent's counts and λ; ``more`` are the figures that only an inspection computes."""
    return AgentRecord(
        model=agent.model,
        overlap_degree=agent.overlap_degree,
        parameters=agent.parameters,
        weight=setting(merge.input_parameters[model]["weight"] for merge, model in places),
        rescale=factors(agent, places),
        clipped=any(_is_clipped(merge, model, agent) for merge, model in places_at_work(places)),
        **more,
    )


def factors(agent: AgentOverlap, places: AgentPlaces) -> Setting:
    """λ of an agent that has these counts, given by hand or computed."""
    counted = places_at_work(places) or places
    return setting(factor_of(merge, model, agent) for merge, model in counted)


def _is_clipped(merge: ExecuteMergeMethodTask, model: ModelReference, agent: AgentOverlap) -> bool:
    parameters = merge.parameters
    if "alpha" not in parameters or merge.input_parameters[model]["rescale"] is not None:
        return False
    return bool(agent.overlap_unique_ratio > parameters["alpha"])
