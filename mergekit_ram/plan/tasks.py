"""The whole-model pass in mergekit's task graph.

A plan of ``ram_plus`` gets one :class:`CountOverlaps` task. It has the highest priority and
depends on nothing that loads weights, so mergekit's executors run it before any tensor is
merged or any file is made. Each merge task depends on it and takes its λ_t from it. A plan that
needs no λ_t has its counts taken while it merges.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mergekit.common import ModelReference, dtype_from_name, get_torch_accelerator_type
from mergekit.graph import Task
from mergekit.io.tasks import GatherTensors
from mergekit.merge_methods.dtype import promoted_dtype
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions
from pydantic import PrivateAttr

from mergekit_ram.kernels.matrices import Layout
from mergekit_ram.methods import needs_counting, with_rescale
from mergekit_ram.models.groups import (
    PlannedOutput,
    Tokenizers,
    agents_of,
    checked_group,
    load_group,
    present,
    settings_of,
)
from mergekit_ram.overlap import OverlapStatistics, TensorOverlap
from mergekit_ram.progress import progress
from mergekit_ram.record.counts import OverlapCounter, recorded_counts
from mergekit_ram.tensors import MergedTensor, count_group, forget_nan, merge_group

COUNT_PRIORITY = 20_000
"""Above all of mergekit's own tasks, so that nothing is written before all is counted."""

TakeCounts = Callable[[str, TensorOverlap | None], None]

_plan_numbers = itertools.count()


class CountOverlaps(Task[OverlapStatistics], frozen=True):
    """Counts overlaps over all tensors of one plan, one tensor group in memory at a time.

    ``plan`` makes the tasks of two plans differ and is all that their hashes see: hashing
    the merges themselves at every step would make planning quadratic in their number.
    """

    plan: int
    quiet: bool = False
    device: str | None = None
    _counter: OverlapCounter = PrivateAttr()

    def arguments(self) -> dict[str, Task[Any]]:
        return {}

    def priority(self) -> int:
        return COUNT_PRIORITY

    def main_thread_only(self) -> bool:
        return True

    def execute(self, **_: Any) -> OverlapStatistics:
        counter = self._counter
        if counter.recorded is not None:
            return counter.complete(counter.recorded.statistics.tensors)
        device = torch.device(self.device or "cpu")
        tokenizers: Tokenizers = {}
        # From the end, so that the page cache keeps what is merged first.
        merges = progress(
            counter.merges[::-1], "Counting overlaps", unit="tensor", quiet=self.quiet
        )
        counted = [count_merge(merge, tokenizers, device) for merge in merges]
        return counter.complete(filter(None, reversed(counted)))


def count_merge(
    merge: ExecuteMergeMethodTask, tokenizers: Tokenizers, device: torch.device
) -> TensorOverlap | None:
    """Load and count the tensors of one merge; None where mergekit copies the tensor.

    Raises:
        RamError: see :func:`load_group` and :func:`count_group`.
    """
    loaded = load_group(merge, tokenizers, device)
    if loaded is None:
        return None
    return count_group(loaded.group, loaded.settings, dtype=loaded.dtype)


class RamMergeTask(ExecuteMergeMethodTask, Task[torch.Tensor]):  # type: ignore[misc]
    """mergekit's merge of one tensor, with the rescale factors of the whole model."""

    statistics: CountOverlaps | None = None
    _take: TakeCounts | None = PrivateAttr(default=None)
    _layout: Layout | None = PrivateAttr(default=None)

    def counted_by(self, take: TakeCounts) -> RamMergeTask:
        """The same merge, whose counts are given to another function if it takes some."""
        task = self.model_copy()
        task._take = take if self._take is not None else None
        return task

    def arguments(self) -> dict[str, Task[Any]]:
        needed = {} if self.statistics is None else {"statistics": self.statistics}
        return {**super().arguments(), **needed}

    def execute(  # type: ignore[override]
        self,
        tensors: dict[ModelReference, torch.Tensor | None],
        statistics: OverlapStatistics | None = None,
        **_: Any,
    ) -> torch.Tensor | None:
        at_hand = present(tensors)
        loaded, name = checked_group(self, at_hand), self.output_weight.name
        if loaded is None:
            merged = MergedTensor(next(iter(at_hand.values())))  # all are the same
        else:
            group, settings = loaded.group, loaded.settings
            if self.statistics is not None:
                assert statistics is not None, "the task above gives them"
                settings = with_rescale(settings, statistics)
            merged = merge_group(
                group,
                settings,
                dtype=loaded.dtype or promoted_dtype(group),
                out_dtype=dtype_from_name(self.out_dtype),
                layout=self._layout,
                counted=self._take is not None,
            )
        if self._take is not None:
            self._take(name, merged.counts)
        return merged.tensor


@dataclass(frozen=True)
class PlannedMerges:
    """One plan's merges in mergekit's order, and the counter that receives their counts."""

    tasks: list[RamMergeTask]
    counter: OverlapCounter


def plan_merges(
    merges: Sequence[ExecuteMergeMethodTask],
    output: PlannedOutput,
    options: MergeOptions,
    *,
    ties_embeddings: bool = False,
) -> PlannedMerges:
    """Turn one plan's merges into tasks that know the whole model.

    Args:
        merges: every merge of the plan, its ``out_dtype`` already the one that is written.
        output: of the plan.
        options: of mergekit's commands.
        ties_embeddings: the merged model takes its output embedding from its input embedding,
            so a stored copy of it is merged and not counted again.

    Raises:
        InputError: recorded ``statistics`` that are not those of this plan.
    """
    forget_nan()
    merges = [_as_stored(m) if m.output_weight.name in output.copied else m for m in merges]
    once = written_once(merges, ties_embeddings)
    needs_pass = any(needs_counting(settings_of(merge, agents_of(merge))) for merge in merges)
    recorded = recorded_counts(once, output.loads) if needs_pass else None
    counter = OverlapCounter(once, quiet=options.quiet, recorded=recorded)
    statistics = None
    if needs_pass:
        # The multi-GPU executor runs leading tasks on the CPU; counting belongs on a GPU.
        device = str(get_torch_accelerator_type()) if options.multi_gpu else options.device
        statistics = CountOverlaps(plan=next(_plan_numbers), quiet=options.quiet, device=device)
        statistics._counter = counter  # type: ignore[misc]  # private attributes stay writable
    counted_here = set() if needs_pass else {id(merge) for merge in once}
    tasks = []
    for merge in merges:
        task = RamMergeTask(**{**dict(merge), "statistics": statistics})
        if output.sides is not None:
            task._layout = output.sides.find(task.output_weight.name)
        if id(merge) in counted_here:
            task._take = counter.add
        tasks.append(task)
    return PlannedMerges(tasks, counter)


def _as_stored(merge: ExecuteMergeMethodTask) -> ExecuteMergeMethodTask:
    """The same merge without casts; mergekit would cast integers and packed weights too."""
    gathering = merge.gather_tensors
    if isinstance(gathering, GatherTensors):
        gathering = gathering.model_copy(update={"dtype": None})
    return merge.model_copy(update={"gather_tensors": gathering, "dtype": None, "out_dtype": None})


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
