"""The whole-model pass in mergekit's task graph.

A plan of ``ram_plus`` gets one :class:`CountOverlaps` task. It has the highest priority and
depends on nothing that loads weights, so mergekit's executors run it before any tensor is
merged or any file is made. Each merge task depends on it and takes its λ_t from it. A plan that
needs no λ_t has its counts taken while it merges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from mergekit.common import ImmutableMap, ModelReference, get_torch_accelerator_type
from mergekit.graph import Task
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from pydantic import PrivateAttr

from mergekit_ram.directions import laid_out
from mergekit_ram.kernels.updates import Layout
from mergekit_ram.merges.groups import (
    Tokenizers,
    agents_of,
    check_base_present,
    is_floating,
    load_group,
    named_refusals,
    present,
    settings_of,
    tensor_group,
)
from mergekit_ram.merges.ledger import Ledger
from mergekit_ram.merges.loads import PlannedLoads
from mergekit_ram.methods import needs_counting, with_rescale
from mergekit_ram.models.transformers_layout import Sides
from mergekit_ram.overlap import OverlapStatistics, TensorOverlap
from mergekit_ram.progress import progress
from mergekit_ram.record import reuse
from mergekit_ram.tensors import count_group, counting_merges

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
    _ledger: Ledger = PrivateAttr()
    _known: OverlapStatistics | None = PrivateAttr(default=None)

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        *,
        quiet: bool,
        device: str | None,
        known: OverlapStatistics | None = None,
    ) -> CountOverlaps:
        """The counting task of one plan.

        Args:
            ledger: that takes the counts.
            quiet: no progress bar.
            device: to count on; by default the one that the executor computes on.
            known: the counts, where they are known already.
        """
        task = cls(plan=next(_plan_numbers), quiet=quiet, device=device)
        task._ledger = ledger  # type: ignore[misc]  # private attributes stay writable
        task._known = known  # type: ignore[misc]
        return task

    @property
    def known(self) -> OverlapStatistics | None:
        """Counts that need not be taken."""
        return self._known

    def arguments(self) -> dict[str, Task[Any]]:
        return {"anchor": ComputeDevice()}

    def uses_accelerator(self) -> bool:
        return True

    def priority(self) -> int:
        return COUNT_PRIORITY

    def main_thread_only(self) -> bool:
        return True

    def execute(self, anchor: torch.Tensor, **_: Any) -> OverlapStatistics:  # type: ignore[override]
        if self._known is not None:
            return self._ledger.complete(self._known.tensors)
        device = torch.device(self.device) if self.device else anchor.device
        tokenizers: Tokenizers = {}
        counted: list[TensorOverlap] = []
        for merge in progress(
            self._ledger.merges, "Counting overlaps", unit="tensor", quiet=self.quiet
        ):
            loaded = load_group(merge, tokenizers, device)
            if loaded is not None:
                counted.append(count_group(loaded.group, loaded.settings, dtype=loaded.dtype))
            del loaded
        return self._ledger.complete(counted)


class CountTaker(Protocol):
    """Who takes the counts of tensors as they are merged; a ledger does."""

    def add(self, name: str, counts: TensorOverlap | None) -> None:
        """Take one tensor's counts; None where it was copied."""


class RamMergeTask(ExecuteMergeMethodTask, Task[torch.Tensor]):  # type: ignore[misc]
    """mergekit's merge of one tensor, with the rescale factors of the whole model."""

    statistics: CountOverlaps | None = None
    _ledger: CountTaker | None = PrivateAttr(default=None)
    _layout: Layout | None = PrivateAttr(default=None)

    def counted_by(self, taker: CountTaker) -> RamMergeTask:
        """The same merge, whose counts go elsewhere where it takes some."""
        task = self.model_copy()
        task._ledger = taker if self._ledger is not None else None
        return task

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
        at_hand = present(tensors)
        check_base_present(self, at_hand)
        task = self
        if statistics is not None:
            factors = self._rescaled(statistics, at_hand)
            task = self.model_copy(update={"input_parameters": factors})
        with named_refusals(), laid_out(self._layout):
            if self._ledger is None:
                return ExecuteMergeMethodTask.execute(task, at_hand)
            with counting_merges() as counted:
                merged = ExecuteMergeMethodTask.execute(task, at_hand)
        if not counted and is_floating(at_hand):
            # The base alone has it: mergekit copies what the method never sees.
            counted = [count_group(tensor_group(self, at_hand), settings_of(self, []))]
        self._ledger.add(self.output_weight.name, counted[0] if counted else None)
        return merged

    def _rescaled(
        self, statistics: OverlapStatistics, tensors: dict[ModelReference, torch.Tensor]
    ) -> ImmutableMap[ModelReference, ImmutableMap[str, Any]]:
        """The agents' parameters with every λ_t filled in."""
        if not is_floating(tensors):
            return self.input_parameters
        agents = [model for model in agents_of(self) if model in tensors]
        settings = with_rescale(settings_of(self, agents), statistics)
        return ImmutableMap(
            {
                agent: ImmutableMap(
                    {**self.input_parameters[agent], "rescale": settings["rescale"][agent]}
                )
                for agent in agents
            }
        )


@dataclass(frozen=True)
class PlannedMerges:
    """One plan's merges in mergekit's order, and the ledger that will hold their counts."""

    tasks: list[RamMergeTask]
    ledger: Ledger


def plan_merges(
    merges: Sequence[ExecuteMergeMethodTask],
    loads: PlannedLoads,
    *,
    quiet: bool = False,
    device: str | None = None,
    ties_embeddings: bool = False,
    layouts: Sides | None = None,
) -> PlannedMerges:
    """Turn one plan's merges into tasks that know the whole model.

    Args:
        merges: every merge of the plan, its ``out_dtype`` already the one that is written.
        loads: what they load.
        quiet: no progress bar in the counting pass.
        device: to count on; by default the one that the executor computes on.
        ties_embeddings: the merged model takes its output embedding from its input embedding,
            so a stored copy of it is merged and not counted again.
        layouts: of the output's tensors, for a method that asks for the side of a matrix.

    Raises:
        InputError: recorded ``statistics`` that are not those of this plan.
    """
    once = written_once(merges, ties_embeddings)
    if any(needs_counting(settings_of(merge, agents_of(merge))) for merge in merges):
        recorded = reuse.recorded_counts(once, loads)
        origin = recorded.path if recorded else None
        ledger = Ledger(once, quiet=quiet, counts_from=origin)
        known = recorded.statistics if recorded else None
        statistics = CountOverlaps.of(ledger, quiet=quiet, device=device, known=known)
    else:
        ledger, statistics = Ledger(once, quiet=quiet), None
    tasks = [RamMergeTask(**{**dict(merge), "statistics": statistics}) for merge in merges]
    if layouts is not None:
        for task in tasks:
            task._layout = layouts.find(task.output_weight.name)
    if statistics is None:
        counted = {id(merge) for merge in once}
        for task, merge in zip(tasks, merges, strict=True):
            if id(merge) in counted:
                task._ledger = ledger
    return PlannedMerges(tasks, ledger)


def counting_device(options: Any) -> str | None:
    """The multi-GPU executor runs leading tasks on the CPU; counting belongs on a GPU."""
    return str(get_torch_accelerator_type()) if options.multi_gpu else None


def may_be_lacked(merge: ExecuteMergeMethodTask) -> ExecuteMergeMethodTask:
    """Raw checkpoints need not hold the same tensors; mergekit copies one of the base alone."""
    weight = merge.output_weight.model_copy(update={"optional": True})
    return merge.model_copy(update={"output_weight": weight})


def written_once(
    merges: Sequence[ExecuteMergeMethodTask], ties_embeddings: bool
) -> list[ExecuteMergeMethodTask]:
    """One merge per weight of the output, in the order in which mergekit will load them.

    Some of mergekit's architectures list a weight in two modules, and the second one written
    replaces the first. A weight that the output ties to another one of the plan is a copy.
    """
    by_name = {merge.output_weight.name: merge for merge in merges}
    once = list(by_name.values())
    if ties_embeddings:
        once = [m for m in once if by_name.keys().isdisjoint(m.output_weight.tied_names or ())]
    return sorted(once, key=lambda merge: merge.group_label() or "")
