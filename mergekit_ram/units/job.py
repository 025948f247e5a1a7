"""A merge as every process of every machine can plan it, and the work on one of its units."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import LoaderCache
from mergekit.io.tensor_writer import TensorWriter
from mergekit.options import MergeOptions

from mergekit_ram import host
from mergekit_ram.autoload import METHOD_NAMES, install
from mergekit_ram.errors import HostError, InputError
from mergekit_ram.models.groups import Tokenizers, run_loading
from mergekit_ram.overlap import OverlapStatistics, TensorOverlap
from mergekit_ram.plan.recipe import read_recipe
from mergekit_ram.plan.tasks import RamMergeTask, count_merge
from mergekit_ram.plan.writing import writing_to
from mergekit_ram.record.merge import versions
from mergekit_ram.text import hushed
from mergekit_ram.units.cut import PlannedUnits, Unit, cut
from mergekit_ram.units.folder import (
    ADAPTERS,
    WORK_FOLDER,
    MergedTensors,
    Receipt,
    WorkFolder,
    digest_of,
    settle,
    write_shard,
)
from mergekit_ram.units.identity import DECIDING_OPTIONS, Manifest, input_states


@dataclass(frozen=True)
class MergeJob:
    """A merge, and how its units are run.

    Args:
        configuration: the YAML's text.
        out_path: folder of the merged model, absolute.
        options: of mergekit's commands.
        threads: of torch, per worker.
        folder: that relative paths start from.
        workers: processes; 1 is this one.
        engine: where they come from, ``local`` or ``ray``.
        units: to do here, while other processes do the others; all by default.
        finalise: do no unit, and make a model of those that are done.
        restart: throw away what an earlier try has finished.
        plan: digest of the plan, which every worker's has to be as well.
    """

    configuration: str
    out_path: str
    options: MergeOptions
    threads: int
    folder: str = field(default_factory=os.getcwd)
    workers: int = 1
    engine: str = "local"
    units: range | None = None
    finalise: bool = False
    restart: bool = False
    plan: str = ""

    @property
    def config(self) -> MergeConfiguration:
        """The configuration in mergekit's form."""
        return MergeConfiguration.model_validate(yaml.safe_load(self.configuration))

    @property
    def is_shared(self) -> bool:
        """Whether other processes may do units beside this one."""
        return self.units is not None and not self.restart

    @property
    def work(self) -> WorkFolder:
        """The work folder, with the names that the plan gives out."""
        ending = "safetensors" if self.options.safe_serialization else "bin"
        return WorkFolder(self.out_path, self.plan, ending)


def read_job(config_file: Path, out_path: Path, options: MergeOptions, **how: Any) -> MergeJob:
    """Read a configuration of one of our methods.

    Args:
        config_file: the YAML file.
        out_path: folder of the merged model.
        options: of mergekit's commands.
        how: further fields of the job.

    Raises:
        HostError: the plugin is switched off.
        InputError: the file is no configuration, or one of another method.
    """
    if not install():
        raise HostError(
            "mergekit-ram is switched off by MERGEKIT_RAM_DISABLE in the environment; "
            "unset it to merge"
        )
    recipe = read_recipe(config_file)
    method = recipe.config.merge_method
    if method not in METHOD_NAMES:
        raise InputError(
            f"{config_file}: merge_method {method} is none of "
            f"{', '.join(sorted(METHOD_NAMES))}, which alone are merged by units; use "
            "mergekit-yaml."
        )
    out = os.path.abspath(out_path)
    threads = options.num_threads or max(1, torch.get_num_threads() // how.get("workers", 1))
    if not options.lora_merge_cache:
        cache = os.path.join(out, ADAPTERS)
        options = options.model_copy(update={"lora_merge_cache": cache})
    return MergeJob(recipe.text, out, options, threads, **how)


@contextmanager
def without_trace(job: MergeJob) -> Iterator[MergeJob]:
    """The same job, to look at its plan: merged adapters are removed afterwards."""
    own_cache = os.path.join(job.out_path, ADAPTERS)
    if os.path.isdir(own_cache) or job.options.lora_merge_cache != own_cache:
        yield job
        return
    with folder_beside(job.out_path) as cache:
        options = job.options.model_copy(update={"lora_merge_cache": cache})
        yield replace(job, options=options)


@contextmanager
def folder_beside(path: str) -> Iterator[str]:
    """A temporary folder, on the same disk where that can be written to."""
    parent = next(parent for parent in (Path(path), *Path(path).parents) if parent.is_dir())
    where = parent if os.access(parent, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=f"{WORK_FOLDER}-", dir=where) as folder:
        yield folder


def plan_of(job: MergeJob) -> PlannedUnits:
    """Plan a merge as mergekit does, and cut it."""
    targets = host.planned_to_disk(job.config, job.out_path, job.options, job.configuration)
    return cut(targets, job.options.out_shard_size)


def manifest_of(job: MergeJob, plan: PlannedUnits) -> Manifest:
    """All that decides the bytes of a merge, from a look at the files that it reads."""
    return Manifest(
        configuration=job.configuration,
        options={name: getattr(job.options, name) for name in DECIDING_OPTIONS},
        models=plan.recorder.inputs.models,
        inputs=input_states(job.config, plan),
        versions=versions(),
        units=plan.units,
    )


def counted(plan: PlannedUnits, work: WorkFolder, units: Iterable[Unit]) -> list[TensorOverlap]:
    """All counts of finished units, in the plan's order.

    Raises:
        InputError: a unit is not done.
    """
    found: dict[str, TensorOverlap | None] = {}
    for receipt in work.receipts(units):
        found |= dict(receipt.counts)
    ordered = (found.get(merge.output_weight.name) for merge in plan.counter.merges)
    return [counts for counts in ordered if counts is not None]


class Worker:
    """A process that has planned a merge, and does units of it."""

    def __init__(self, job: MergeJob, plan: PlannedUnits):
        self.job = job
        self.plan = plan
        self.work = job.work
        self.device = torch.device(job.options.device or "cpu")
        self.tokenizers: Tokenizers = {}
        self.merges = {merge.output_weight.name: merge for merge in plan.counter.merges}

    def run(self, number: int) -> Callable[[], None]:
        """Do a unit.

        Returns:
            A function that makes its result last, to be called once, in any thread.
        """
        unit = self.plan.units[number]
        receipt, draft = self._count(unit) if unit.kind == "count" else self._write(unit)

        def last() -> None:
            with writing_to(self.job.out_path):
                if draft is not None:
                    settle(draft, self.work.shard(number))
                self.work.enter(receipt)

        return last

    def _count(self, unit: Unit) -> tuple[Receipt, None]:
        counts = tuple((name, self.count(name)) for name in unit.tensors)
        return Receipt(plan=self.job.plan, unit=unit.number, counts=counts), None

    def count(self, name: str) -> TensorOverlap | None:
        """The counts of one tensor; None where it is copied."""
        return count_merge(self.merges[name], self.tokenizers, self.device)

    def _write(self, unit: Unit) -> tuple[Receipt, Path]:
        counts: dict[str, TensorOverlap | None] = {}
        tensors = MergedTensors()
        for name in unit.tensors:
            self.merge(name, counts, tensors)
        with writing_to(self.job.out_path):
            path = self.work.shard(unit.number)
            draft = write_shard(tensors.found, path)
        receipt = Receipt(
            plan=self.job.plan,
            unit=unit.number,
            digest=digest_of(tensors.found),
            tensors=tuple(tensors.found),
            size=sum(tensor.nbytes for tensor in tensors.found.values()),
            counts=tuple(counts.items()),
        )
        return receipt, draft

    def merge(
        self, name: str, counts: dict[str, TensorOverlap | None], tensors: MergedTensors
    ) -> None:
        """Merge one tensor, and keep it and its counts."""
        save = self.plan.saves[name]
        merge = save.tensor_task
        assert isinstance(merge, RamMergeTask)
        loaded = run_loading(merge.gather_tensors, self.tokenizers)
        moved = {m: t if t is None else t.to(self.device) for m, t in loaded.items()}
        statistics = self.statistics if merge.statistics is not None else None
        merged = merge.counted_by(counts.__setitem__).execute(moved, statistics=statistics)
        save.execute(writer=cast(TensorWriter, tensors), tensor=merged)

    @functools.cached_property
    def statistics(self) -> OverlapStatistics:
        """The counts of the whole model, which every shard needs."""
        recorded = self.plan.counter.recorded
        if recorded is not None:
            return recorded.statistics
        tensors = counted(self.plan, self.work, self.plan.counts)
        return OverlapStatistics(tensors=tuple(tensors))


def run_unit(job: MergeJob, number: int) -> None:
    """Do one unit in a worker process, and make it last.

    Raises:
        RamError: as merging does; where this machine does not see a folder, with its name.
    """
    planned_worker(job).run(number)()
    # Mapped files count as memory of this process, and one that grows is replaced by another.
    LoaderCache().flush_all()  # type: ignore[no-untyped-call]


@functools.cache
def planned_worker(job: MergeJob) -> Worker:
    """Plan the merge in this process, once.

    Raises:
        InputError: this machine lacks a folder, or has other models or packages.
    """
    host = socket.gethostname()
    for folder, title in ((job.folder, "working folder"), (job.out_path, "output folder")):
        if not Path(folder).is_dir():
            raise InputError(
                f"host {host} does not see the {title} {folder}: all machines of a "
                "merge need the same shared folders under the same paths."
            )
    os.chdir(job.folder)
    torch.set_num_threads(job.threads)
    silent = replace(job, options=job.options.model_copy(update={"quiet": True}))
    with hushed():  # the process that drives this one has said it all
        plan = plan_of(silent)
    manifest = manifest_of(job, plan)
    if manifest.digest != job.plan:
        raise InputError(
            f"host {host} would do units of another merge into {job.out_path}: "
            f"{job.work.manifest().differs_from(manifest)}. All workers of a merge need the same "
            "models and packages."
        )
    return Worker(job, plan)
