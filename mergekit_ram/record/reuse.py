"""Counts that were recorded earlier, used again where they are those of the present plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import PermutedVocabulary
from mergekit.tokenizer.truncate import TruncatedVocabulary

from mergekit_ram.errors import InputError, PlanError
from mergekit_ram.merges.groups import agents_of
from mergekit_ram.merges.loads import Load, PlannedLoads, loading_digest
from mergekit_ram.models.checkpoints import TensorHeader
from mergekit_ram.models.loader import headers_of
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.record.files import model_records
from mergekit_ram.record.schema import (
    FileRecord,
    ModelRecord,
    OverlapRecord,
    TensorRecord,
    read_record,
)
from mergekit_ram.tensors import agent_name

Headers = dict[str, dict[str, TensorHeader]]
"""Of the base models, as far as they were asked for."""

REMEDY = "Leave `statistics` out and the merge counts anew."


@dataclass(frozen=True)
class RecordedCounts:
    """Counts that are those of the present plan, and the file that they were read from."""

    statistics: OverlapStatistics
    path: str


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
    difference = _difference(record, merges, planned)
    if difference:
        raise InputError(
            f"statistics {path}: they are not those of this merge: {difference}. {REMEDY}"
        )
    return RecordedCounts(record.statistics(), str(path))


def _difference(
    record: OverlapRecord, merges: Sequence[ExecuteMergeMethodTask], planned: PlannedLoads
) -> str | None:
    """The first thing in which a record and a plan differ, in words."""
    if record.sample is not None:
        return f"they are an estimate from {record.sample.fraction:g} of the rows"
    if any(file.contents is None for model in record.models for file in model.files):
        return "an earlier version recorded them, which did not look at the models' contents"
    return _models_differ(record.models, model_records(planned)) or _tensors_differ(
        record.tensors, merges, planned
    )


def _models_differ(recorded: Sequence[ModelRecord], planned: Sequence[ModelRecord]) -> str | None:
    was = {model.model: model for model in recorded}
    now = {model.model: model for model in planned}
    for name in sorted(was.keys() ^ now.keys()):
        return f"model {name} is {'not merged now' if name in was else 'not in them'}"
    for name, model in now.items():
        difference = _files_differ(was[name].files, model.files)
        if difference:
            return f"model {name} has changed: {difference}"
    return None


def _files_differ(recorded: Sequence[FileRecord], present: Sequence[FileRecord]) -> str | None:
    was = {file.name: file for file in recorded}
    now = {file.name: file for file in present}
    other = [
        name for name in sorted(was | now) if _outside(was.get(name)) != _outside(now.get(name))
    ]
    if other:
        return ", ".join(other)
    other = [name for name in now if now[name].contents != was[name].contents]
    if other:
        return f"{', '.join(other)} (same size and tensors, other weights)"
    return None


def _outside(file: FileRecord | None) -> tuple[int, str] | None:
    """What a file is without its weights."""
    return None if file is None else (file.size, file.header)


def _tensors_differ(
    recorded: Sequence[TensorRecord],
    merges: Sequence[ExecuteMergeMethodTask],
    planned: PlannedLoads,
) -> str | None:
    was = {tensor.name: tensor for tensor in recorded}
    now = {merge.output_weight.name: merge for merge in merges}
    headers: Headers = {}
    for name in sorted(was.keys() - now.keys()):
        return f"tensor {name} is not merged now"
    for name, merge in now.items():
        if name in was:
            difference = _tensor_differs(was[name], merge, planned, headers)
            if difference:
                return f"tensor {name} {difference}"
        elif not _may_be_uncounted(merge):
            return f"tensor {name} is not in them"
    return None


def _tensor_differs(
    was: TensorRecord, merge: ExecuteMergeMethodTask, planned: PlannedLoads, headers: Headers
) -> str | None:
    epsilon = merge.parameters["epsilon"]
    if was.epsilon != epsilon:
        return f"was counted with epsilon {was.epsilon:g}, not {epsilon:g}"
    weights = {
        agent_name(model): merge.input_parameters[model]["weight"] for model in agents_of(merge)
    }
    for agent in was.agents:
        weight = weights.get(agent.model)
        if agent.weight != weight:
            return f"was counted with weight {agent.weight:g} for {agent.model}, not {weight}"
    loads = planned[was.name]
    if was.loading != loading_digest(merge, loads):
        return "is loaded otherwise (its layers, agents, dtype or vocabulary)"
    return _holders_differ(was, merge, loads) or _size_differs(was, merge, loads, headers)


def _holders_differ(
    was: TensorRecord, merge: ExecuteMergeMethodTask, loads: Sequence[Load]
) -> str | None:
    """Agents without a tensor are in no count of it; one that holds it has to be."""
    counted = {agent.model for agent in was.agents}
    agents = {agent_name(model) for model in agents_of(merge)}
    for load in loads:
        is_held = not load.optional or any(name in load.index.tensor_paths for name in load.names)
        if load.model in agents and is_held and load.model not in counted:
            return f"has no counts of {load.model}"
    return None


def _size_differs(
    was: TensorRecord, merge: ExecuteMergeMethodTask, loads: Sequence[Load], headers: Headers
) -> str | None:
    if isinstance(merge.gather_tensors, PermutedVocabulary | TruncatedVocabulary):
        return None
    for load in loads:
        if load.model == str(merge.base_model):
            if load.model not in headers:
                headers[load.model] = headers_of(load.index, load.model)
            found = [
                headers[load.model][name] for name in load.names if name in headers[load.model]
            ]
            # Without a header of its own the tensor is assembled from others.
            if found and math.prod(found[0].shape) != was.numel:
                return f"has {math.prod(found[0].shape):,} parameters, not {was.numel:,}"
    return None


def _may_be_uncounted(merge: ExecuteMergeMethodTask) -> bool:
    """Non-floating buffers and weights that no model holds are in no record."""
    return bool(merge.output_weight.optional)
