"""Cuts a plan into numbered units: groups of tensors to count, then shards to write.

The cut follows from the plan alone, never from the number of workers, so that every process of
every machine means the same by a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from mergekit.graph import Task
from mergekit.io.tasks import SaveTensor
from mergekit.tokenizer import PermutedVocabulary
from mergekit.tokenizer.truncate import TruncatedVocabulary
from pydantic import BaseModel

from mergekit_ram.plan.tasks import RamMergeTask
from mergekit_ram.plan.writing import FinalizeMergedModel
from mergekit_ram.record.counts import OverlapCounter
from mergekit_ram.record.merge import MergeRecorder

# At most about so many: enough for workers to share out, few enough to be no burden.
COUNTING_UNITS = 64

# Bytes read; below this, starting a unit costs more than it saves.
SMALLEST_COUNTING_UNIT = 256_000_000

# Stands for the parameters of a tensor whose rows follow from a tokenizer.
ALIGNED = -1

Kind = Literal["count", "shard"]

# Name and bytes of a tensor, and whether it has to stand alone.
Row = tuple[str, int, bool]


class Unit(BaseModel, frozen=True):
    """One piece of work, done whole or not at all.

    Args:
        number: counted from 0 over all units of a plan.
        kind: of work.
        tensors: names in the output, in the order in which they are merged.
        numels: their parameters; 0 of one that is copied, ``ALIGNED`` where not known before.
        read: bytes of all models' tensors.
        written: bytes of the merged ones; 0 of a unit that counts.
    """

    number: int
    kind: Kind
    tensors: tuple[str, ...]
    numels: tuple[int, ...]
    read: int
    written: int


@dataclass(frozen=True)
class PlannedUnits:
    """One plan, and how it is cut.

    Args:
        saves: the task that saves each tensor of the output, by name.
        recorder: of the plan.
        needs_counts: the shards need the counts of the whole model.
        tokenizer: the task that builds a tokenizer, where there is one.
        units: in the order of their numbers.
    """

    saves: dict[str, SaveTensor]
    recorder: MergeRecorder
    needs_counts: bool
    tokenizer: Task[Any] | None
    units: tuple[Unit, ...]

    @property
    def counter(self) -> OverlapCounter:
        return self.recorder.counter

    @property
    def counts(self) -> tuple[Unit, ...]:
        """The units that count."""
        return tuple(unit for unit in self.units if unit.kind == "count")

    @property
    def shards(self) -> tuple[Unit, ...]:
        """The units that write."""
        return tuple(unit for unit in self.units if unit.kind == "shard")


def cut(targets: Sequence[Task[Any]], shard_size: int) -> PlannedUnits:
    """Cut a plan of one of our methods into units.

    Args:
        targets: of mergekit's plan to disk.
        shard_size: bytes of a shard; one tensor may be larger and then stands alone.
    """
    (last,) = (task for task in targets if isinstance(task, FinalizeMergedModel))
    # A weight that two modules list is written by the later one.
    tasks = (task for task in last.tensor_save_tasks if isinstance(task, SaveTensor))
    saves = {task.tensor_name: task for task in tasks}
    others = [task for task in targets if not isinstance(task, SaveTensor | FinalizeMergedModel)]
    recorder, sizes = last.recorder, last.recorder.output.sizes
    merges = [save.tensor_task for save in saves.values()]
    needs_counts = any(isinstance(m, RamMergeTask) and m.statistics is not None for m in merges)
    reads: list[Row] = []
    if needs_counts and recorder.counter.recorded is None:
        names = [merge.output_weight.name for merge in recorder.counter.merges]
        reads = [(name, sizes[name].read, False) for name in names if name in sizes]
    # Rows are known only when such a tensor is merged, so it gets its own shard.
    aligned = {name for name, save in saves.items() if _is_aligned(save)}
    writes = [
        (name, sizes[name].written, name in aligned)
        for name, save in saves.items()
        if name in sizes
    ]
    room = max(SMALLEST_COUNTING_UNIT, -(-sum(size for _, size, _ in reads) // COUNTING_UNITS))
    pieces: list[tuple[Kind, list[str]]] = [("count", names) for names in _grouped(reads, room)]
    room = shard_size if shard_size > 0 else sum(size for _, size, _ in writes)
    pieces += [("shard", names) for names in _grouped(writes, room)]
    units = tuple(
        Unit(
            number=number,
            kind=kind,
            tensors=tuple(names),
            numels=tuple(ALIGNED if name in aligned else sizes[name].numel for name in names),
            read=sum(sizes[name].read for name in names),
            written=sum(sizes[name].written for name in names) if kind == "shard" else 0,
        )
        for number, (kind, names) in enumerate(pieces)
    )
    return PlannedUnits(saves, recorder, needs_counts, others[0] if others else None, units)


def _is_aligned(save: SaveTensor) -> bool:
    gathering = getattr(save.tensor_task, "gather_tensors", None)
    return isinstance(gathering, PermutedVocabulary | TruncatedVocabulary)


def _grouped(rows: Iterable[Row], most: int) -> list[list[str]]:
    """Names in groups of at most ``most`` bytes; those marked stand alone."""
    groups: list[list[str]] = []
    room = 0
    for name, size, is_alone in rows:
        if is_alone or size > room or not groups:
            groups.append([])
            room = most
        groups[-1].append(name)
        room = -1 if is_alone else room - size
    return groups


def runs_of(numbers: Sequence[int]) -> Iterator[str]:
    """Numbers in ascending order, neighbours together: 3, 5 to 8."""
    for _, neighbours in groupby(enumerate(numbers), lambda entry: entry[1] - entry[0]):
        first, *rest = (number for _, number in neighbours)
        yield f"{first} to {rest[-1]}" if rest else str(first)
