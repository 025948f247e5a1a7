"""What a worker does: plan the merge for itself, once, then any unit that it is told.

A worker gets the configuration, the output folder and numbers, never tensors.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
import yaml
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import LoaderCache, SaveTensor
from mergekit.io.tensor_writer import TensorWriter
from mergekit.options import MergeOptions

from mergekit_ram import handover
from mergekit_ram.errors import InputError
from mergekit_ram.hush import hushed
from mergekit_ram.merges.groups import Tokenizers, run_loading
from mergekit_ram.overlap import OverlapStatistics, TensorOverlap
from mergekit_ram.plan.tasks import RamMergeTask, count_merge
from mergekit_ram.plan.writing import writing_to
from mergekit_ram.record.merge import versions
from mergekit_ram.units import orphans, shard
from mergekit_ram.units.manifest import Manifest, Receipt, WorkFolder
from mergekit_ram.units.numbering import PlannedUnits, Unit, cut

DECIDING_OPTIONS = (
    "allow_crimes",
    "device",
    "lora_merge_dtype",
    "out_shard_size",
    "safe_serialization",
    "unsafe_truncate_embeddings",
)
"""mergekit's options that change what is written."""


@dataclass(frozen=True)
class Job:
    """A merge as every process of every machine can plan it."""

    configuration: str
    """The YAML's text."""
    out_path: str
    options: MergeOptions
    folder: str
    """That relative paths start from."""
    threads: int
    """Of torch, per worker."""
    plan: str = ""
    """The digest of the driver's plan, which a worker's has to be as well."""
    driver: int = 0
    """The driver's process, where its workers are on its machine."""


@dataclass
class Bench:
    """A planned merge, and what a process keeps between its units."""

    job: Job
    plan: PlannedUnits
    tokenizers: Tokenizers = field(default_factory=dict)
    statistics: OverlapStatistics | None = None

    @classmethod
    def of(cls, job: Job, plan: PlannedUnits) -> Bench:
        return cls(job, plan)

    @functools.cached_property
    def device(self) -> torch.device:
        """To compute on."""
        return torch.device(self.job.options.device or "cpu")

    @functools.cached_property
    def work(self) -> WorkFolder:
        return WorkFolder(self.job.out_path, self.job.plan)

    def run(self, number: int) -> Callable[[], Receipt]:
        """Do a unit.

        Returns:
            What makes it last: to be called once, in any thread.
        """
        unit = self.plan.units[number]
        started = time.perf_counter()
        if unit.kind == "count":
            receipt = Receipt(unit=number, counts=self._count(unit))
            return functools.partial(self._enter, receipt, started)
        return self._write(unit, started)

    def _enter(self, receipt: Receipt, started: float) -> Receipt:
        seconds = round(time.perf_counter() - started, 3)
        receipt = receipt.model_copy(update={"seconds": seconds})
        with writing_to(self.job.out_path):
            self.work.enter(receipt)
        return receipt

    def _count(self, unit: Unit) -> tuple[tuple[str, TensorOverlap | None], ...]:
        merges = {merge.output_weight.name: merge for merge in self.plan.ledger.merges}
        found: list[tuple[str, TensorOverlap | None]] = []
        for name in unit.tensors:
            found.append((name, count_merge(merges[name], self.tokenizers, self.device)))
        return tuple(found)

    def _write(self, unit: Unit, started: float) -> Callable[[], Receipt]:
        safe = self.job.options.safe_serialization
        counts = _Collected()
        tensors = _Kept()
        for name in unit.tensors:
            self._merge(self.plan.saves[name], counts, tensors)
        if not tensors.found:
            return functools.partial(
                self._enter, Receipt(unit=unit.number, counts=tuple(counts.found)), started
            )
        path = self.work.unit_file(unit.number, "safetensors" if safe else "bin")
        with writing_to(self.job.out_path):
            shard.write_draft(tensors.found, path, safe=safe)
        receipt = Receipt(
            unit=unit.number,
            file=path.name,
            digest=shard.digest_of(tensors.found),
            tensors=tuple(tensors.found),
            size=sum(tensor.nbytes for tensor in tensors.found.values()),
            counts=tuple(counts.found),
        )

        def last() -> Receipt:
            with writing_to(self.job.out_path):
                shard.settle(path)
            return self._enter(receipt, started)

        return last

    def _merge(self, save: SaveTensor, counts: _Collected, tensors: _Kept) -> None:
        merge = save.tensor_task
        assert isinstance(merge, RamMergeTask)
        at_hand = run_loading(merge.gather_tensors, self.tokenizers)
        moved = {m: t if t is None else t.to(self.device) for m, t in at_hand.items()}
        merged = merge.counted_by(counts.add).execute(moved, statistics=self._statistics(merge))
        save.execute(writer=cast(TensorWriter, tensors), tensor=merged)

    def _statistics(self, merge: RamMergeTask) -> OverlapStatistics | None:
        if merge.statistics is None:
            return None
        if self.statistics is None:
            recorded = self.plan.ledger.recorded
            if recorded is not None:
                self.statistics = recorded.statistics
            else:
                text = self.work.statistics.read_text(encoding="utf-8")
                self.statistics = OverlapStatistics.model_validate_json(text)
        return self.statistics


class _Collected:
    """Takes the counts of the tensors of one unit, in place of a ledger."""

    def __init__(self) -> None:
        self.found: list[tuple[str, TensorOverlap | None]] = []

    def add(self, name: str, counts: TensorOverlap | None) -> None:
        self.found.append((name, counts))


class _Kept:
    """Takes what mergekit saves, in place of its writer."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def save_tensor(self, name: str, tensor: torch.Tensor, clone: bool = False) -> None:
        """As mergekit's writer does; a view of a mapped file is no memory of the shard's own."""
        tensor = tensor.contiguous().cpu()
        self.found[name] = tensor.clone() if clone else tensor


def run_unit(job: Job, number: int) -> Receipt:
    """Do one unit in a worker process, and make it last.

    Raises:
        RamError: as merging does; where this machine does not see a folder, with its name.
    """
    receipt = bench_of(job).run(number)()
    # Mapped files count as memory of this process, and one that grows is replaced by another.
    LoaderCache().flush_all()  # type: ignore[no-untyped-call]
    return receipt


_benches: dict[tuple[str, str], Bench] = {}
"""The merges that this worker has planned."""


def bench_of(job: Job) -> Bench:
    """The merge as planned in this process, once."""
    key = (job.plan, job.out_path)
    if key not in _benches:
        if job.driver:
            orphans.end_with(job.driver)
        _check_seen(job)
        os.chdir(job.folder)
        torch.set_num_threads(job.threads)
        # Whoever drives the workers has planned the same, and said what there is.
        silent = job.options.model_copy(update={"quiet": True})
        with hushed():
            plan = plan_of(replace(job, options=silent))
        _check_same(job, manifest_of(job, plan))
        _benches[key] = Bench.of(job, plan)
    return _benches[key]


def plan_of(job: Job) -> PlannedUnits:
    """Plan a merge as mergekit does, and cut it."""
    config = MergeConfiguration.model_validate(yaml.safe_load(job.configuration))
    targets = handover.planned_to_disk(config, job.out_path, job.options, job.configuration)
    return cut(targets, job.options.out_shard_size)


def manifest_of(job: Job, plan: PlannedUnits) -> Manifest:
    """All that decides the bytes of a merge."""
    return Manifest(
        configuration=job.configuration,
        options={name: getattr(job.options, name) for name in DECIDING_OPTIONS},
        models=plan.recorder.models,
        versions=versions(),
        units=plan.units,
    )


def _check_same(job: Job, manifest: Manifest) -> None:
    if manifest.digest == job.plan:
        return
    difference = WorkFolder(job.out_path).manifest().differs_from(manifest) or "another one"
    raise InputError(
        f"host {socket.gethostname()} would do units of another merge into {job.out_path}: "
        f"{difference}. All workers of a merge need the same models and packages."
    )


def _check_seen(job: Job) -> None:
    for folder, what in ((job.folder, "the working folder"), (job.out_path, "the output folder")):
        if not Path(folder).is_dir():
            raise InputError(
                f"host {socket.gethostname()} does not see {what} {folder}: all machines of a "
                "merge need the same shared folders under the same paths."
            )
