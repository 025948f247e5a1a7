"""A merge as every process of every machine can plan it, and the work on one of its units."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from mergekit.config import MergeConfiguration
from mergekit.graph import Task
from mergekit.io.tasks import LoaderCache, SaveTensor
from mergekit.io.tensor_writer import TensorWriter
from mergekit.options import MergeOptions
from mergekit.tokenizer import BuildTokenizer

from mergekit_ram import host
from mergekit_ram.autoload import METHOD_NAMES, install
from mergekit_ram.errors import HostError, InputError
from mergekit_ram.methods import METHODS
from mergekit_ram.models.adapters import tell_of_cache
from mergekit_ram.models.groups import Tokenizers, run_loading
from mergekit_ram.overlap import OverlapStatistics, TensorOverlap
from mergekit_ram.plan.recipe import misplaced_keys, read_recipe, unknown_parameters
from mergekit_ram.plan.tasks import RamMergeTask, count_merge
from mergekit_ram.plan.writing import FinalizeMergedModel, writing_to
from mergekit_ram.record.merge import versions
from mergekit_ram.record.schema import WORK_FOLDER
from mergekit_ram.text import hushed
from mergekit_ram.units.folder import ADAPTERS, WorkFolder, unfinished_merge
from mergekit_ram.units.manifest import DECIDING_OPTIONS, Manifest, cut, input_states
from mergekit_ram.units.shards import MergedTensors, Receipt, digest_of, settle, write_shard


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
    spec = METHODS[method].spec
    useless = [*misplaced_keys(recipe.text, spec), *unknown_parameters(recipe.config, spec)]
    if useless:
        raise InputError(f"{config_file}: {'; '.join(useless)}")
    out = os.path.abspath(out_path)
    threads = options.num_threads or max(1, torch.get_num_threads() // how.get("workers", 1))
    if not options.lora_merge_cache:
        cache = os.path.join(out, ADAPTERS)
        options = options.model_copy(update={"lora_merge_cache": cache})
        if any(model.lora for model in recipe.config.referenced_models()):
            tell_of_cache(cache)
    return MergeJob(recipe.text, out, options, threads, **how)


@contextmanager
def without_trace(job: MergeJob) -> Iterator[MergeJob]:
    """The same job into a temporary folder, on the same disk where that can be written to."""
    out = Path(job.out_path)
    parent = next(parent for parent in (out, *out.parents) if parent.is_dir())
    where = parent if os.access(parent, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=f"{WORK_FOLDER}-", dir=where) as folder:
        options = job.options
        if options.lora_merge_cache == str(out / ADAPTERS):
            options = options.model_copy(update={"lora_merge_cache": folder})
        yield replace(job, out_path=folder, options=options)


class Worker:
    """A process that has planned a merge, and does units of it.

    Args:
        job: the merge.
        targets: of mergekit's plan of it; planned here by default.

    Raises:
        RamError: as planning does.
    """

    def __init__(self, job: MergeJob, targets: Sequence[Task[Any]] | None = None):
        if targets is None:
            targets = host.planned_to_disk(job.config, job.out_path, job.options, job.configuration)
        (last,) = (task for task in targets if isinstance(task, FinalizeMergedModel))
        self.tokenizer_task = next((t for t in targets if isinstance(t, BuildTokenizer)), None)
        self.tokenizers: Tokenizers = {}
        saved = (task for task in last.tensor_save_tasks if isinstance(task, SaveTensor))
        # A weight that two modules list is written by the later one.
        self.saves = {task.tensor_name: task for task in saved}
        self.recorder, self.counter = last.recorder, last.recorder.counter
        self.merges = {merge.output_weight.name: merge for merge in self.counter.merges}
        tasks = (save.tensor_task for save in self.saves.values())
        self.needs_counts = any(
            isinstance(task, RamMergeTask) and task.statistics is not None for task in tasks
        )
        counted = self.merges if self.needs_counts and not self.counter.recorded else ()
        sizes = self.recorder.output.sizes
        manifest = Manifest(
            configuration=job.configuration,
            options={name: getattr(job.options, name) for name in DECIDING_OPTIONS},
            models=self.recorder.inputs.models,
            inputs=input_states(job.config, job.options, self.counter.counts_from),
            versions=versions(),
            units=cut(self.saves, sizes, counted, job.options.out_shard_size),
        )
        self.job = replace(job, plan=manifest.digest)
        self.work = WorkFolder(job.out_path, manifest)
        self.device = torch.device(job.options.device or "cpu")

    def run(self, number: int) -> Callable[[], None]:
        """Do a unit.

        Returns:
            A function that makes its result last, to be called once, in any thread.
        """
        unit = self.work.manifest.units[number]
        counts: dict[str, TensorOverlap | None] = {}
        tensors = MergedTensors()
        path = self.work.shard(number)
        draft = None
        if unit.kind == "count":
            counts |= {name: self.count(name) for name in unit.tensors}
        else:
            for name in unit.tensors:
                self.merge(name, counts, tensors)
            with writing_to(self.job.out_path, path.name):
                draft = write_shard(tensors.found, path)
        digest = digest_of(tensors.found) if draft else ""
        receipt = Receipt(
            plan=self.job.plan, unit=number, digest=digest, counts=tuple(counts.items())
        )

        def last() -> None:
            with writing_to(self.job.out_path, path.name):
                if draft is not None:
                    settle(draft, path)
                self.work.enter(receipt)

        return last

    def count(self, name: str) -> TensorOverlap | None:
        """The counts of one tensor; None where it is copied."""
        return count_merge(self.merges[name], self.tokenizers, self.device)

    def merge(
        self, name: str, counts: dict[str, TensorOverlap | None], tensors: MergedTensors
    ) -> None:
        """Merge one tensor, and keep it and its counts."""
        save = self.saves[name]
        merge = save.tensor_task
        assert isinstance(merge, RamMergeTask)
        loaded = run_loading(merge.gather_tensors, self.tokenizers)
        moved = {m: t if t is None else t.to(self.device) for m, t in loaded.items()}
        statistics = self.statistics if merge.statistics is not None else None
        merged = merge.counted_by(counts.__setitem__).execute(moved, statistics=statistics)
        save.execute(writer=cast(TensorWriter, tensors), tensor=merged)

    @functools.cached_property
    def statistics(self) -> OverlapStatistics:
        """The counts of the whole model, once the units that make them are done.

        Raises:
            InputError: some are not.
        """
        if self.counter.recorded is not None:
            return self.counter.recorded.statistics
        found = self.work.counts("count" if self.needs_counts else "shard")
        ordered = (found.get(name) for name in self.merges)
        return OverlapStatistics(tensors=tuple(filter(None, ordered)))


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
    machine = socket.gethostname()
    for folder, title in ((job.folder, "working folder"), (job.out_path, "output folder")):
        if not Path(folder).is_dir():
            raise InputError(
                f"host {machine} does not see the {title} {folder}: all machines of a "
                "merge need the same shared folders under the same paths."
            )
    os.chdir(job.folder)
    torch.set_num_threads(job.threads)
    silent = replace(job, options=job.options.model_copy(update={"quiet": True}))
    with hushed():  # the process that drives this one has said it all
        worker = Worker(silent)
    if worker.job.plan != job.plan:
        difference = unfinished_merge(job.out_path).manifest.differs_from(worker.work.manifest)
        raise InputError(
            f"host {machine} would do units of another merge into {job.out_path}: {difference}. "
            "All workers of a merge need the same models and packages."
        )
    return worker
