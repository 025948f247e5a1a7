"""Merges by units: mergekit plans, units do what its executor would, and mergekit finishes.

There are three kinds of commands. Each makes all its decisions about the output folder under the
lock that it holds from its beginning to its end.

=====================  =========  =============================================================
command                lock       does
=====================  =========  =============================================================
``--units``            shared     begins if nobody has, does its units, and nothing else
``--finalise``         alone      makes the model of units that are all done
neither                alone      begins or resumes, does all units and makes the model
=====================  =========  =============================================================
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mergekit.graph import Task
from mergekit.merge import run_merge
from mergekit.tokenizer import TokenizerInfo

from mergekit_ram import host
from mergekit_ram.errors import InputError
from mergekit_ram.plan.folder import MARKS, check_output, lock_folder, remove_earlier_model
from mergekit_ram.plan.writing import writing_to
from mergekit_ram.progress import progress_in_bytes
from mergekit_ram.record.schema import RECORD_NAME
from mergekit_ram.units.cut import Kind, PlannedUnits, Unit, cut
from mergekit_ram.units.engines import run_here, run_in_processes, run_on_ray
from mergekit_ram.units.finish import Finisher, check_is_finished
from mergekit_ram.units.folder import ADAPTERS, WORK_FOLDER, WorkFolder
from mergekit_ram.units.identity import named_folders
from mergekit_ram.units.job import MergeJob, Worker, manifest_of, plan_of, without_trace

LOG = logging.getLogger("mergekit_ram")

TITLES: dict[Kind, str] = {"count": "Counting overlaps", "shard": "Merging"}


def merge(job: MergeJob) -> bool:
    """Merge by units, resuming where an earlier try stopped.

    Returns:
        Whether the model is finished, or nothing was begun.

    Raises:
        RamError: as merging does; an unfinished merge of another plan lies in the folder, or
            another process is at work in it; with ``job.units`` or ``job.finalise`` a finished
            model of another merge lies in it, and is not replaced.
    """
    if job.finalise and job.restart:
        raise InputError(
            "--finalise uses finished units, and --restart throws them away: leave out one of them."
        )
    is_part = job.units is not None or job.finalise
    lock = lock_folder(job.out_path, shared=job.is_shared, waits=is_part)
    try:
        if is_part and not job.restart and not job.work.exists:
            is_finished = _is_finished(job)
            if is_finished or job.finalise:
                return is_finished
        if job.units is not None:
            _Driver(job).do_units(plan_of(job), job.units)
            return not job.work.exists
        with host.executed_by(_Driver(job).execute):
            run_merge(job.config, job.out_path, job.options, job.configuration)
        job.work.remove()
        shutil.rmtree(Path(job.out_path, ADAPTERS), ignore_errors=True)
        return True
    finally:
        lock.close()


def _is_finished(job: MergeJob) -> bool:
    """Whether this merge is finished in a folder in which no merge is unfinished.

    Raises:
        InputError: another model lies in the folder, or there is nothing to finalise.
    """
    if any(Path(job.out_path, mark).is_file() for mark in MARKS):
        with without_trace(job) as looking:
            plan = plan_of(looking)
        _check_places(job, plan)
        check_is_finished(job, plan)
        LOG.warning(
            "output folder %s: this merge is finished: nothing is left to do. --restart merges "
            "anew.",
            job.out_path,
        )
        return True
    if job.finalise:
        raise InputError(
            f"output folder {job.out_path}: no unfinished merge lies in it. Begin one by the same "
            "command without --finalise, or give its folder."
        )
    return False


class _Driver:
    """One try at one merge, under the lock of its folder."""

    def __init__(self, job: MergeJob):
        self.job = job

    def execute(self, targets: Sequence[Task[Any]]) -> Iterator[tuple[Any, Any]]:
        """All of a merge, in place of mergekit's executor.

        Yields:
            The task that builds a tokenizer, and its value, where there is one.
        """
        plan = cut(targets, self.job.options.out_shard_size)
        self._begin(plan, plan.units)
        worker, finisher = Worker(self.job, plan), Finisher(self.job, plan)
        lacking = finisher.lacking(plan.units)
        if self.job.finalise:
            self.job.work.check_done([unit.number for unit in lacking])
        for unit in lacking:
            self.job.work.forget(unit)
        if done := len(plan.units) - len(lacking):
            LOG.warning("resuming: %d of %d units were finished earlier", done, len(plan.units))
        self._do(worker, lacking, "count")
        if plan.needs_counts:
            plan.counter.complete(worker.statistics.tensors)
        self._do(worker, lacking, "shard")
        if plan.tokenizer is not None:
            built = worker.tokenizers.get(plan.tokenizer) or plan.tokenizer.execute()
            assert isinstance(built, TokenizerInfo)
            yield plan.tokenizer, built
        with writing_to(self.job.out_path):
            finisher.finish()

    def do_units(self, plan: PlannedUnits, numbers: range) -> None:
        """Do some units, beside other processes that do others."""
        if numbers.start >= len(plan.units):
            # The last task of an array may have nothing to do.
            LOG.warning(
                "--units %d:%d: nothing to do, the merge has %d units, numbered from 0",
                numbers.start,
                numbers.stop,
                len(plan.units),
            )
            return
        asked = [unit for unit in plan.units if unit.number in numbers]
        self._begin(plan, asked)
        if self.job.work.is_finishing:
            LOG.warning(
                "output folder %s: all units are done. Run the same command with --finalise in "
                "place of --units.",
                self.job.out_path,
            )
            return
        worker, lacking = Worker(self.job, plan), Finisher(self.job, plan).lacking(asked)
        self._do(worker, lacking, "count")
        self._do(worker, lacking, "shard")

    def _begin(self, plan: PlannedUnits, asked: Sequence[Unit]) -> None:
        """Write down the plan, or check that it is that of the unfinished merge.

        Args:
            plan: of this process.
            asked: the units that it will see to.

        Raises:
            InputError: an unfinished merge of another plan lies in the folder, or it is none to
                write to.
        """
        _check_places(self.job, plan)
        out_path, is_anew = self.job.out_path, self.job.restart or not self.job.work.exists
        manifest = manifest_of(self.job, plan)
        self.job = replace(self.job, plan=manifest.digest)
        work = self.job.work
        lacking = (unit for unit in asked if is_anew or work.receipt(unit) is None)
        written = sum(unit.written for unit in lacking)
        check_output(out_path, written, named_folders(self.job.config))
        with writing_to(out_path):
            if is_anew and not self.job.is_shared:
                work.remove()
                remove_earlier_model(work.output)
            if is_anew:
                work.begin(manifest)
        difference = work.manifest().differs_from(manifest)
        if difference:
            raise InputError(
                f"output folder {out_path}: an unfinished merge lies in it, of {difference}. "
                "Finish it, choose another folder, or throw it away by --restart."
            )

    def _do(self, worker: Worker, lacking: Sequence[Unit], kind: Kind) -> None:
        size = {unit.number: unit.read + unit.written for unit in lacking if unit.kind == kind}
        if not size:
            return
        quiet = self.job.options.quiet
        with progress_in_bytes(sum(size.values()), TITLES[kind], quiet=quiet) as bar:
            done = itertools.count(1)

            def seen(number: int) -> None:
                bar.set_postfix_str(f"unit {next(done)} of {len(size)}", refresh=False)
                bar.update(size[number])

            if self.job.engine == "ray":
                run_on_ray(self.job, list(size), seen)
            elif self.job.workers > 1:
                run_in_processes(self.job, list(size), seen)
            else:
                run_here(worker, list(size), seen)


def _check_places(job: MergeJob, plan: PlannedUnits) -> None:
    """Check that a merge removes nothing that it reads, and can move shards to their last place.

    Raises:
        InputError: the work folder lies on another disk, or holds an input or the output; or the
            counts are part of the model that is replaced.
    """
    for path in (job.out_path, *named_folders(job.config)):
        if WORK_FOLDER in Path(path).resolve().parts:
            raise InputError(
                f"{path} lies in the work folder of an unfinished merge, which is removed at its "
                "end. Choose another folder."
            )
    work = job.work.path
    if work.is_symlink() or work.is_mount():
        raise InputError(
            f"{work} is a link or another disk, from which shards cannot be moved to the output "
            "folder. Remove it, and choose an output folder with enough room."
        )
    origin = Path(plan.counter.counts_from or "")
    if origin.name == RECORD_NAME and origin.parent.resolve() == Path(job.out_path).resolve():
        raise InputError(
            f"statistics {origin}: they are part of the model in the output folder "
            f"{job.out_path}, which this merge replaces. Copy the file elsewhere, or choose "
            "another folder."
        )


def progress_text(out_path: Path) -> str:
    """What ``mergekit-ram status FOLDER`` prints of a folder.

    Raises:
        InputError: there is no such folder, or its manifest is damaged.
    """
    if not out_path.is_dir():
        raise InputError(f"{out_path}: no such folder. Give the folder of a merge by units.")
    if not WorkFolder(out_path).exists:
        return f"{out_path}: no unfinished merge\n"
    manifest = WorkFolder(out_path).manifest()
    work = WorkFolder(out_path, manifest.digest, manifest.ending)
    lines = [f"{out_path}: an unfinished merge of {len(manifest.models)} models"]
    for kind, title in (("count", "counting"), ("shard", "merging")):
        units = [unit for unit in manifest.units if unit.kind == kind]
        done = [unit for unit in units if work.receipt(unit) is not None]
        if units:
            whole, ready = (sum(u.read + u.written for u in group) for group in (units, done))
            share = 100 * ready / max(whole, 1)
            lines.append(
                f"{title:<9} {len(done)} of {len(units)} units, {ready / 1e9:,.2f} of "
                f"{whole / 1e9:,.2f} GB ({share:.0f} %)"
            )
    return "\n".join([*lines, "The same command resumes from here; --restart throws it away.\n"])
