"""Makes records: the parts that a merge's and an inspection's have in common."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Sequence

from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.merges.groups import AgentPlaces, agents_of, factor_of
from mergekit_ram.merges.loads import PlannedLoads, loading_digest
from mergekit_ram.overlap import AgentOverlap, OverlapStatistics, TensorOverlap
from mergekit_ram.record.layers import Place
from mergekit_ram.record.schema import (
    AgentRecord,
    LayerRecord,
    Setting,
    Settings,
    TensorAgent,
    TensorRecord,
    Versions,
)
from mergekit_ram.tensors import agent_name

DISTRIBUTIONS = {"mergekit_ram": "mergekit-ram", "mergekit": "mergekit", "torch": "torch"}


def versions() -> Versions:
    """Of what computes here."""
    return Versions(**{name: importlib.metadata.version(d) for name, d in DISTRIBUTIONS.items()})


def base_names(merges: Sequence[ExecuteMergeMethodTask]) -> str:
    """The base of all merges; slices may have one of their own each."""
    return ", ".join(dict.fromkeys(str(merge.base_model) for merge in merges))


def settings_record(merges: Sequence[ExecuteMergeMethodTask]) -> Settings:
    """The parameters that are shared by a tensor's models."""

    def values(name: str) -> Setting | None:
        found = [merge.parameters[name] for merge in merges if name in merge.parameters]
        return setting(found) if found else None

    return Settings.model_validate({name: values(name) for name in Settings.model_fields})


def setting(values: Iterable[float]) -> Setting:
    """A number if all are the same, else the different ones."""
    different = tuple(sorted(set(values)))
    return different[0] if len(different) == 1 else different


def tensor_records(
    merges: Sequence[ExecuteMergeMethodTask],
    planned: PlannedLoads,
    statistics: OverlapStatistics,
) -> tuple[TensorRecord, ...]:
    """What was counted in every tensor, with the λ_t that holds there."""
    counted = {tensor.name: tensor for tensor in statistics.tensors}
    return tuple(
        _tensor_record(merge, planned, counted[merge.output_weight.name], statistics)
        for merge in merges
        if merge.output_weight.name in counted
    )


def _tensor_record(
    merge: ExecuteMergeMethodTask,
    planned: PlannedLoads,
    counts: TensorOverlap,
    statistics: OverlapStatistics,
) -> TensorRecord:
    models = {agent_name(model): model for model in agents_of(merge)}
    return TensorRecord(
        name=counts.name,
        numel=counts.numel,
        epsilon=merge.parameters["epsilon"],
        change=counts.changed / counts.numel if counts.numel else 0.0,
        agents=tuple(
            TensorAgent(
                model=agent.model,
                weight=merge.input_parameters[models[agent.model]]["weight"],
                active=agent.active,
                shared=agent.shared,
                unique=agent.unique,
                overlap_degree=agent.overlap_degree,
                rescale=factor_of(merge, models[agent.model], statistics.agent(agent.model)),
            )
            for agent in counts.agents
        ),
        loading=loading_digest(merge, planned[counts.name]),
    )


def layer_records(tensors: Sequence[TensorRecord]) -> tuple[LayerRecord, ...]:
    """The change of every layer, in the order of the tensors."""
    found: dict[str, list[TensorRecord]] = {}
    for tensor in tensors:
        found.setdefault(Place.of(tensor.name).layer, []).append(tensor)
    return tuple(
        LayerRecord(
            name=name,
            numel=sum(tensor.numel for tensor in own),
            change=sum(tensor.change * tensor.numel for tensor in own)
            / max(1, sum(tensor.numel for tensor in own)),
        )
        for name, own in found.items()
    )


def agent_record(agent: AgentOverlap, places: AgentPlaces, **more: object) -> AgentRecord:
    """An agent's counts and factors; ``more`` are the figures that only inspecting computes."""
    return AgentRecord(
        model=agent.model,
        weight=setting(merge.input_parameters[model]["weight"] for merge, model in places),
        active=agent.active,
        shared=agent.shared,
        unique=agent.unique,
        density=agent.density,
        overlap_degree=agent.overlap_degree,
        overlap_share=agent.overlap_share,
        overlap_unique_ratio=agent.finite_ratio,
        rescale=factors(agent, places),
        clipped=any(_is_clipped(merge, model, agent) for merge, model in _at_work(places)),
        **more,  # type: ignore[arg-type]
    )


def factors(agent: AgentOverlap, places: AgentPlaces) -> Setting:
    """λ of an agent that has these counts, given by hand or computed."""
    return setting(factor_of(merge, model, agent) for merge, model in _at_work(places) or places)


def _at_work(places: AgentPlaces) -> AgentPlaces:
    """Where the agent takes no part it has no factor either."""
    return [(merge, model) for merge, model in places if _parameter(merge, model, "weight") != 0]


def _is_clipped(merge: ExecuteMergeMethodTask, model: ModelReference, agent: AgentOverlap) -> bool:
    parameters = merge.parameters
    if "alpha" not in parameters or _parameter(merge, model, "rescale") is not None:
        return False
    return bool(agent.overlap_unique_ratio > parameters["alpha"])


def _parameter(merge: ExecuteMergeMethodTask, model: ModelReference, name: str) -> float | None:
    value: float | None = merge.input_parameters[model][name]
    return value
