"""The whole-model pass in mergekit's task graph.

A plan of ``ram_plus`` gets one :class:`CountOverlaps` task. It has the highest priority and
depends on nothing that loads weights, so mergekit's executors run it before any tensor is
merged or any file is made. Each merge task depends on it and takes its λ_t from it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import tqdm
from mergekit import merge_methods
from mergekit.common import ImmutableMap, ModelReference, dtype_from_name
from mergekit.graph import Task
from mergekit.merge_methods.base import TensorEntry, TensorGroup, TensorMetadata
from mergekit.merge_methods.buffers import copy_non_floating_buffer
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import BuildTokenizer
from pydantic import PrivateAttr

from mergekit_ram.descent import DescentWatch, warn_of
from mergekit_ram.errors import InputError
from mergekit_ram.methods import agent_name, count_group, needs_counting, with_rescale
from mergekit_ram.overlap import AgentOverlap, OverlapStatistics, TensorOverlap
from mergekit_ram.preflight import lacking_base

LOG = logging.getLogger("mergekit_ram")

COUNT_PRIORITY = 20_000
"""Above all of mergekit's own tasks, so that nothing is written before all is counted."""

_plan_numbers = itertools.count()


class ComputeDevice(Task[torch.Tensor], frozen=True):
    """An empty tensor that the executor moves to the device it computes on.

    Whoever takes it as an argument can see from it which device that is.
    """

    def arguments(self) -> dict[str, Task[Any]]:
        return {}

    def execute(self, **_: Any) -> torch.Tensor:
        return torch.empty(0)

    def priority(self) -> int:
        return COUNT_PRIORITY

    def main_thread_only(self) -> bool:
        return True


class CountOverlaps(Task[OverlapStatistics], frozen=True):
    """Counts overlaps over all tensors of one plan, one tensor group in memory at a time.

    ``plan`` makes the tasks of two plans differ and is all that their hashes see: hashing
    the merges themselves at every step would make planning quadratic in their number.
    """

    plan: int
    quiet: bool = False
    device: str | None = None
    _merges: tuple[ExecuteMergeMethodTask, ...] = PrivateAttr(default=())

    @classmethod
    def over(
        cls, merges: Sequence[ExecuteMergeMethodTask], *, quiet: bool, device: str | None
    ) -> CountOverlaps:
        """The counting task of one plan.

        Args:
            merges: the merge of every weight of the output, once.
            quiet: no progress bar.
            device: to count on; by default the one that the executor computes on.
        """
        task = cls(plan=next(_plan_numbers), quiet=quiet, device=device)
        # In the order in which mergekit will load them again.
        ordered = tuple(sorted(merges, key=lambda merge: merge.group_label() or ""))
        task._merges = ordered  # type: ignore[misc]  # private attributes stay writable
        return task

    def arguments(self) -> dict[str, Task[Any]]:
        return {"anchor": ComputeDevice()}

    def uses_accelerator(self) -> bool:
        return True

    def priority(self) -> int:
        return COUNT_PRIORITY

    def main_thread_only(self) -> bool:
        return True

    def execute(self, anchor: torch.Tensor, **_: Any) -> OverlapStatistics:  # type: ignore[override]
        device = torch.device(self.device) if self.device else anchor.device
        tokenizers: dict[Task[Any], Any] = {}
        counted: list[TensorOverlap] = []
        for merge in tqdm.tqdm(
            self._merges, desc="Counting overlaps", unit="tensor", disable=self.quiet
        ):
            tensors = _present(_load(merge.gather_tensors, tokenizers))
            counts = _count(merge, tensors, device)
            if counts is not None:
                counted.append(counts)
            del tensors
        statistics = OverlapStatistics(tensors=tuple(counted))
        _log_agents(statistics, self._merges)
        return statistics


class RamMergeTask(ExecuteMergeMethodTask, Task[torch.Tensor]):  # type: ignore[misc]
    """mergekit's merge of one tensor, with the rescale factors of the whole model."""

    statistics: CountOverlaps | None = None
    _watch: DescentWatch | None = PrivateAttr(default=None)

    def arguments(self) -> dict[str, Task[Any]]:
        arguments = super().arguments()
        if self.statistics is not None:
            arguments["statistics"] = self.statistics
        return arguments

    def execute(  # type: ignore[override]
        self,
        tensors: dict[ModelReference, torch.Tensor | None],
        statistics: OverlapStatistics | None = None,
        **_: Any,
    ) -> torch.Tensor | None:
        present = _present(tensors)
        _check_base_present(self, present)
        task = self
        if statistics is not None:
            factors = self._rescaled(statistics, present)
            task = self.model_copy(update={"input_parameters": factors})
        with _named_refusals():
            merged = ExecuteMergeMethodTask.execute(task, present)
        if self._watch is not None:
            self._watch.see(*self._floating_group(present))
        return merged

    def _floating_group(
        self, tensors: dict[ModelReference, torch.Tensor]
    ) -> tuple[TensorGroup | None, dict[str, Any]]:
        agents = [model for model in _agents(self) if model in tensors]
        group = _group(self, tensors) if _is_floating(tensors) else None
        return group, _settings(self, agents)

    def _rescaled(
        self, statistics: OverlapStatistics, tensors: dict[ModelReference, torch.Tensor]
    ) -> ImmutableMap[ModelReference, ImmutableMap[str, Any]]:
        """The agents' parameters with every λ_t filled in."""
        if not _is_floating(tensors):
            return self.input_parameters
        agents = [model for model in _agents(self) if model in tensors]
        settings = with_rescale(_settings(self, agents), statistics)
        return ImmutableMap(
            {
                agent: ImmutableMap(
                    {**self.input_parameters[agent], "rescale": settings["rescale"][agent]}
                )
                for agent in agents
            }
        )


def plan_merges(
    merges: Sequence[ExecuteMergeMethodTask],
    *,
    quiet: bool = False,
    device: str | None = None,
    ties_embeddings: bool = False,
    numels: Mapping[str, int] | None = None,
) -> list[RamMergeTask]:
    """Turn one plan's merges into tasks that know the whole model.

    Args:
        merges: every merge of the plan, its ``out_dtype`` already the one that is written.
        quiet: no progress bar in the counting pass.
        device: to count on; by default the one that the executor computes on.
        ties_embeddings: the merged model takes its output embedding from its input embedding,
            so a stored copy of it is merged and not counted again.
        numels: the number of parameters of each merged weight. Where nothing is counted, they
            are needed to warn of agents that do not descend from the base.

    Returns:
        The merges in the same order, joined by one counting task where a λ_t is needed.
    """
    once = _written_once(merges, ties_embeddings)
    statistics = None
    if any(needs_counting(_settings(merge, _agents(merge))) for merge in merges):
        statistics = CountOverlaps.over(once, quiet=quiet, device=device)
    planned = [RamMergeTask(**{**dict(merge), "statistics": statistics}) for merge in merges]
    if statistics is None and numels is not None:
        watched = {id(merge) for merge in once}
        pairs = zip(planned, merges, strict=True)
        _watch_descent([task for task, merge in pairs if id(merge) in watched], numels)
    return planned


def _watch_descent(merges: Sequence[RamMergeTask], numels: Mapping[str, int]) -> None:
    parameters = sum(numels.get(merge.output_weight.name, 0) for merge in merges)
    watch = DescentWatch(len(merges), parameters)
    for merge in merges:
        merge._watch = watch


def _written_once(
    merges: Sequence[ExecuteMergeMethodTask], ties_embeddings: bool
) -> list[ExecuteMergeMethodTask]:
    """One merge per weight of the output.

    Some of mergekit's architectures list a weight in two modules, and the second one written
    replaces the first. A weight that the output ties to another one of the plan is a copy.
    """
    by_name = {merge.output_weight.name: merge for merge in merges}
    if not ties_embeddings:
        return list(by_name.values())
    return [
        m for m in by_name.values() if by_name.keys().isdisjoint(m.output_weight.tied_names or ())
    ]


def _load(task: Task[Any], tokenizers: dict[Task[Any], Any]) -> Any:
    """Run mergekit's own loading tasks for one tensor, keeping nothing but tokenizers."""
    if task in tokenizers:
        return tokenizers[task]
    arguments = {name: _load(argument, tokenizers) for name, argument in task.arguments().items()}
    value = task.execute(**arguments)
    if isinstance(task, BuildTokenizer):
        tokenizers[task] = value
    return value


@contextmanager
def _named_refusals() -> Iterator[None]:
    """mergekit's own refusals of a tensor, which name it, as errors of ours."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None


def _present(
    tensors: dict[ModelReference, torch.Tensor | None],
) -> dict[ModelReference, torch.Tensor]:
    """Without the models that lack the tensor; some of mergekit's tasks list them with None."""
    return {model: tensor for model, tensor in tensors.items() if tensor is not None}


def _count(
    merge: ExecuteMergeMethodTask,
    tensors: dict[ModelReference, torch.Tensor],
    device: torch.device,
) -> TensorOverlap | None:
    """The counts of one merge; none where mergekit copies the tensor instead."""
    _check_base_present(merge, tensors)
    group = _group(merge, {model: tensor.to(device) for model, tensor in tensors.items()})
    with _named_refusals():
        if copy_non_floating_buffer(group.tensors, merge.output_weight.name) is not None:
            return None
        group.validate_tensors()
    agents = [model for model in _agents(merge) if model in tensors]
    return count_group(group, _settings(merge, agents), dtype=dtype_from_name(merge.dtype))


def _group(
    merge: ExecuteMergeMethodTask, tensors: dict[ModelReference, torch.Tensor]
) -> TensorGroup:
    entries = tuple(
        TensorEntry(id=model, tensor=tensors[model], is_base=model == merge.base_model)
        for model in merge.model_order
        if model in tensors
    )
    return TensorGroup(entries, TensorMetadata.from_weight_info(merge.output_weight))


def _settings(merge: ExecuteMergeMethodTask, agents: Sequence[ModelReference]) -> dict[str, Any]:
    """Shared parameters by name, and those of the given agents by name and agent."""
    method = merge_methods.get(merge.method_name)
    per_agent = {
        parameter.name: {agent: merge.input_parameters[agent][parameter.name] for agent in agents}
        for parameter in method.spec.input_parameters
    }
    return {**dict(merge.parameters.items()), **per_agent}


def _agents(merge: ExecuteMergeMethodTask) -> list[ModelReference]:
    return [model for model in merge.model_order if model != merge.base_model]


def _is_floating(tensors: dict[ModelReference, torch.Tensor]) -> bool:
    return all(tensor.is_floating_point() for tensor in tensors.values())


def _check_base_present(
    merge: ExecuteMergeMethodTask, tensors: dict[ModelReference, torch.Tensor]
) -> None:
    if merge.base_model is None or merge.base_model not in tensors:
        raise lacking_base(merge, tensors)


def _log_agents(statistics: OverlapStatistics, merges: Sequence[ExecuteMergeMethodTask]) -> None:
    """One line per agent: what it changed, and the λ_t that its unique parameters get."""
    for agent in statistics.agents:
        factors = _factors(agent, merges)
        if not factors:
            LOG.info("agent %s: takes no part, its weight is 0 everywhere", agent.model)
            continue
        low, high = min(factors), max(factors)
        factor = f"{low:.4f}" if low == high else f"{low:.4f} to {high:.4f}"
        LOG.info(
            "agent %s: density %.2f %%, shared %s, unique %s, ρ %.4g, λ %s",
            agent.model,
            100 * agent.density,
            f"{agent.shared:,}",
            f"{agent.unique:,}",
            agent.overlap_unique_ratio,
            factor,
        )
        warn_of(agent.model, agent.active, agent.parameters)


def _factors(agent: AgentOverlap, merges: Sequence[ExecuteMergeMethodTask]) -> set[float]:
    """Every λ_t that the agent gets in some tensor, by hand or computed."""
    found = set()
    for merge in merges:
        for model in _agents(merge):
            own = merge.input_parameters[model]
            if agent_name(model) == agent.model and own["weight"] != 0:
                by_hand = own["rescale"]
                shared = merge.parameters
                found.add(
                    agent.rescale(shared["r"], shared["alpha"]) if by_hand is None else by_hand
                )
    return found
