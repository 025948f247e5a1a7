"""Take counts from an earlier record instead of counting again, if they are of the same merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.errors import InputError, PlanError
from mergekit_ram.models.groups import Load, PlannedLoads, agents_of, loading_digest
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.record.check import differences, read_record
from mergekit_ram.record.contents import model_records
from mergekit_ram.record.schema import ModelRecord, TensorRecord
from mergekit_ram.tensors import agent_name

Identity = dict[str, dict[str, object]]
"""Everything that counts depend on, by model and by tensor."""

LOADING = "loading (its layers, agents, dtype or vocabulary)"
REMEDY = "Leave `statistics` out and the merge counts anew."


@dataclass(frozen=True)
class RecordedCounts:
    """Counts of the present plan, and the file that they were read from."""

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
    start = f"statistics {path}: they are not those of this merge"
    if record.sample is not None:
        raise InputError(
            f"{start}: they are an estimate from {record.sample.fraction:g} of the rows. {REMEDY}"
        )
    recorded = {tensor.name: tensor for tensor in record.tensors}
    was = {**_models(record.models), **{f"tensor {n}": _recorded(t) for n, t in recorded.items()}}
    now = _models(model_records(planned))
    for merge in merges:
        name = merge.output_weight.name
        # Buffers of integers and weights that no model has are copied, not counted.
        if name in recorded or not merge.output_weight.optional:
            now[f"tensor {name}"] = _planned(merge, planned[name], recorded.get(name))
    for place, before, after in differences(was, now):
        raise InputError(f"{start}: {', '.join(place)} {_difference(before, after)}. {REMEDY}")
    return RecordedCounts(record.statistics(), str(path))


def _difference(before: object, after: object) -> str:
    if before is None or after is None:
        return "is not in them" if before is None else "is not merged now"
    return f"was {before}, and is {after} now"


def _models(models: Sequence[ModelRecord]) -> Identity:
    return {f"model {model.model}": {file.name: file for file in model.files} for model in models}


def _recorded(tensor: TensorRecord) -> dict[str, object]:
    weights = {f"weight of {agent.model}": agent.weight for agent in tensor.agents}
    return {"epsilon": tensor.epsilon, LOADING: tensor.loading, **weights}


def _planned(
    merge: ExecuteMergeMethodTask, loads: Sequence[Load], recorded: TensorRecord | None
) -> dict[str, object]:
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
