"""Counts that were recorded earlier, used again where they are those of the present plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.errors import InputError, PlanError
from mergekit_ram.merges.groups import agents_of
from mergekit_ram.merges.loads import PlannedLoads, loading_digest
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.record.files import model_records
from mergekit_ram.record.schema import ModelRecord, OverlapRecord, TensorRecord, read_record
from mergekit_ram.tensors import agent_name

REMEDY = "Leave `statistics` out and the merge counts anew."


def recorded_statistics(
    merges: Sequence[ExecuteMergeMethodTask], planned: PlannedLoads
) -> OverlapStatistics | None:
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
    return record.statistics()


def _difference(
    record: OverlapRecord, merges: Sequence[ExecuteMergeMethodTask], planned: PlannedLoads
) -> str | None:
    """The first thing in which a record and a plan differ, in words."""
    if record.sample is not None:
        return f"they are an estimate from {record.sample.fraction:g} of the rows"
    return _models_differ(record.models, model_records(planned)) or _tensors_differ(
        record.tensors, merges, planned
    )


def _models_differ(recorded: Sequence[ModelRecord], planned: Sequence[ModelRecord]) -> str | None:
    was = {model.model: model for model in recorded}
    now = {model.model: model for model in planned}
    for name in sorted(was.keys() ^ now.keys()):
        return f"model {name} is {'not merged now' if name in was else 'not in them'}"
    for name, model in now.items():
        if model != was[name]:
            files = {file.name for file in set(model.files) ^ set(was[name].files)}
            return f"model {name} has changed: {', '.join(sorted(files))}"
    return None


def _tensors_differ(
    recorded: Sequence[TensorRecord],
    merges: Sequence[ExecuteMergeMethodTask],
    planned: PlannedLoads,
) -> str | None:
    was = {tensor.name: tensor for tensor in recorded}
    now = {merge.output_weight.name: merge for merge in merges}
    for name in sorted(was.keys() - now.keys()):
        return f"tensor {name} is not merged now"
    for name, merge in now.items():
        if name in was:
            difference = _tensor_differs(was[name], merge, planned)
            if difference:
                return f"tensor {name} {difference}"
        elif not _may_be_uncounted(merge):
            return f"tensor {name} is not in them"
    return None


def _tensor_differs(
    was: TensorRecord, merge: ExecuteMergeMethodTask, planned: PlannedLoads
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
    if was.loading != loading_digest(merge, planned[was.name]):
        return "is loaded otherwise (its layers, agents, dtype or vocabulary)"
    return None


def _may_be_uncounted(merge: ExecuteMergeMethodTask) -> bool:
    """Non-floating buffers and weights that no model holds are in no record."""
    return bool(merge.output_weight.optional)
