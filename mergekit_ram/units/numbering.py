"""Cuts a plan into numbered units: groups of tensors to count, then shards to write.

The cut follows from the plan alone, never from the number of workers, so that every process of
every machine means the same by a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mergekit.graph import Task
from mergekit.io.tasks import SaveTensor
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import PermutedVocabulary
from pydantic import BaseModel

from mergekit_ram.merges.loads import TensorSize
from mergekit_ram.plan.tasks import CountOverlaps, RamMergeTask
from mergekit_ram.plan.writing import FinalizeMergedModel
from mergekit_ram.record.counter import OverlapCounter
from mergekit_ram.record.merge import MergeRecorder

COUNTING_UNITS = 64
"""At most about so many: enough for workers to share out, few enough to be no burden."""

SMALLEST_COUNTING_UNIT = 256_000_000
"""Bytes read; below this starting a unit costs more than it saves."""


Kind = Literal["count", "shard"]


class Unit(BaseModel, frozen=True):
    """One piece of work, done whole or not at all."""

    number: int
    kind: Kind
    tensors: tuple[str, ...]
    read: int
    """Bytes of all models' tensors."""
    written: int
    """Bytes of the merged ones; 0 of a unit that counts."""


@dataclass(frozen=True)
class PlannedUnits:
    """One plan, and how it is cut."""

    saves: dict[str, SaveTensor]
    """The task that saves each tensor of the output, by name."""
    recorder: MergeRecorder
    counting: CountOverlaps | None
    """The plan's counting task; none where its factors need no counts."""
    tokenizer: Task[Any] | None
    units: tuple[Unit, ...]

    @property
    def ledger(self) -> OverlapCounter:
        return self.recorder.ledger

    @property
    def largest_group(self) -> int:
        """Bytes of the tensor that is largest in all models together."""
        return max((size.read for size in self.recorder.sizes.values()), default=0)

    @property
    def shards(self) -> tuple[Unit, ...]:
        """The units that write."""
        return tuple(unit for unit in self.units if unit.kind == "shard")

    @property
    def counts(self) -> tuple[Unit, ...]:
        """The units that count."""
        return tuple(unit for unit in self.units if unit.kind == "count")


def cut(targets: Sequence[Task[Any]], shard_size: int) -> PlannedUnits:
    """Cut a plan of one of our methods into units.

    Args:
        targets: of mergekit's plan to disk.
        shard_size: bytes of a shard; one tensor may be larger and then stands alone.
    """
    # A weight that two modules list is written by the later one.
    saves = {task.tensor_name: task for task in targets if isinstance(task, SaveTensor)}
    (last,) = (task for task in targets if isinstance(task, FinalizeMergedModel))
    recorder = last.recorder
    others = [task for task in targets if not isinstance(task, SaveTensor | FinalizeMergedModel)]
    sizes = recorder.sizes
    counting = _counting_task(saves.values())
    is_unknown = counting is not None and recorder.ledger.recorded is None
    groups = _counting_groups(recorder.ledger.merges, sizes) if is_unknown else []
    pieces: list[tuple[Kind, tuple[str, ...]]] = [("count", group) for group in groups]
    pieces += [("shard", shard) for shard in _shards(saves, sizes, shard_size)]
    units = tuple(
        Unit(
            number=number,
            kind=kind,
            tensors=names,
            read=sum(sizes[name].read for name in names),
            written=sum(sizes[name].written for name in names) if kind == "shard" else 0,
        )
        for number, (kind, names) in enumerate(pieces)
    )
    return PlannedUnits(saves, recorder, counting, others[0] if others else None, units)


def _counting_task(saves: Iterable[SaveTensor]) -> CountOverlaps | None:
    for save in saves:
        merge = save.tensor_task
        if isinstance(merge, RamMergeTask) and merge.statistics is not None:
            return merge.statistics
    return None


def _counting_groups(
    merges: Sequence[ExecuteMergeMethodTask], sizes: Mapping[str, TensorSize]
) -> list[tuple[str, ...]]:
    names = [merge.output_weight.name for merge in merges if merge.output_weight.name in sizes]
    total = sum(sizes[name].read for name in names)
    most = max(SMALLEST_COUNTING_UNIT, -(-total // COUNTING_UNITS))
    return _grouped([(name, sizes[name].read, False) for name in names], most)


def _shards(
    saves: dict[str, SaveTensor], sizes: Mapping[str, TensorSize], shard_size: int
) -> list[tuple[str, ...]]:
    rows = [
        (name, sizes[name].written, _is_permuted(save))
        for name, save in saves.items()
        if name in sizes
    ]
    return _grouped(rows, shard_size if shard_size > 0 else sum(size for _, size, _ in rows))


def _is_permuted(save: SaveTensor) -> bool:
    """Its rows are known only when the vocabularies are aligned, so it gets its own shard."""
    gathering = getattr(save.tensor_task, "gather_tensors", None)
    return isinstance(gathering, PermutedVocabulary)


def _grouped(rows: Iterable[tuple[str, int, bool]], most: int) -> list[tuple[str, ...]]:
    """Names in groups of at most ``most`` bytes; those marked stand alone."""
    groups: list[list[str]] = []
    room = 0
    for name, size, is_alone in rows:
        if is_alone or size > room or not groups:
            groups.append([])
            room = most
        groups[-1].append(name)
        room = -1 if is_alone else room - size
    return [tuple(group) for group in groups]
