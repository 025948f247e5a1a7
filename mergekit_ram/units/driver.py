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

import logging
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mergekit.graph import Task
from mergekit.merge import run_merge

from mergekit_ram import host
from mergekit_ram.errors import InputError
from mergekit_ram.models.groups import run_loading
from mergekit_ram.plan.folder import MARKS, check_output, lock_folder, remove_earlier_model
from mergekit_ram.plan.writing import writing_to
from mergekit_ram.progress import progress_in_bytes
from mergekit_ram.record.check import read_record
from mergekit_ram.record.contents import written_files
from mergekit_ram.record.merge import settings_record
from mergekit_ram.record.schema import RECORD_NAME, WORK_FOLDER
from mergekit_ram.units.engines import Engine, engine_of
from mergekit_ram.units.folder import ADAPTERS, is_unfinished, remove_work, unfinished_merge
from mergekit_ram.units.job import MergeJob, Worker, without_trace
from mergekit_ram.units.manifest import Kind, Unit, by_model, first_difference, named_parts
from mergekit_ram.units.shards import read_file

LOG = logging.getLogger("mergekit_ram")

STEPS: dict[Kind, str] = {"count": "counting", "shard": "merging"}

# mergekit writes it beside a model.
CONFIGURATION = "mergekit_config.yml"


def merge(job: MergeJob) -> bool:
    """Merge by units, resuming where an earlier try stopped.

    Returns:
        Whether the model is finished, or nothing was begun.

    Raises:
        RamError: as merging does; an unfinished merge of another plan lies in the folder, or
            another process is at work in it; with ``job.units`` or ``job.finalise`` a finished
            model of another merge lies in it, and is not replaced.
    """
    if job.finalise and (job.restart or job.units is not None):
        raise InputError(
            "--finalise uses finished units: it does none (--units) and throws none away "
            "(--restart). Leave out one of the two."
        )
    is_part = job.units is not None or job.finalise
    with lock_folder(job.out_path, shared=job.is_shared, waits=is_part):
        if is_part and not job.restart and not is_unfinished(job.out_path):
            if any(Path(job.out_path, mark).is_file() for mark in MARKS):
                _check_finished(job)
                return True
            if job.finalise:
                raise InputError(
                    f"output folder {job.out_path}: no unfinished merge lies in it. Begin one by "
                    "the same command without --finalise, or give its folder."
                )
        if job.units is not None:
            _do(Worker(job))
            return not is_unfinished(job.out_path)
        with host.executed_by(partial(_execute, job)):
            run_merge(job.config, job.out_path, job.options, job.configuration)
        remove_work(job.out_path)
        shutil.rmtree(Path(job.out_path, ADAPTERS), ignore_errors=True)
        return True


def _execute(job: MergeJob, targets: Sequence[Task[Any]]) -> Iterator[tuple[Any, Any]]:
    """All of a merge, in place of mergekit's executor.

    Yields:
        The task that builds a tokenizer, and its value, where there is one.
    """
    worker = Worker(job, targets)
    _do(worker)
    if worker.tokenizer_task is not None:
        yield worker.tokenizer_task, run_loading(worker.tokenizer_task, worker.tokenizers)
    with writing_to(job.out_path):
        worker.recorder.inputs.check_unchanged()
        if worker.counter.statistics is None:
            worker.counter.complete(worker.statistics.tensors)
        worker.work.finish()
        worker.recorder.write(job.out_path)


def _do(worker: Worker) -> None:
    """Do those of the units that a job asks for that are not done."""
    job, work, units = worker.job, worker.work, worker.work.manifest.units
    numbers = job.units or range(len(units))
    asked = [unit for unit in units if unit.number in numbers]
    if not asked:
        # The last task of an array may have nothing to do.
        LOG.warning(
            "--units %d:%d: nothing to do, the merge has %d units, numbered from 0",
            numbers.start,
            numbers.stop,
            len(units),
        )
        return
    _begin(worker, asked)
    lacking = work.lacking(asked)
    if job.finalise:
        work.check_done([unit.number for unit in lacking])
    if job.units is None and len(lacking) < len(asked):
        done = len(asked) - len(lacking)
        LOG.warning("resuming: %d of %d units were finished earlier", done, len(asked))
    if not lacking:
        return
    with engine_of(worker, len(lacking)) as engine:
        # Counted from the end, so that the page cache keeps what is merged first.
        _run(engine, [unit for unit in reversed(lacking) if unit.kind == "count"], job)
        if job.units is None and worker.needs_counts:
            worker.counter.complete(worker.statistics.tensors)
        _run(engine, [unit for unit in lacking if unit.kind == "shard"], job)


def _begin(worker: Worker, asked: Sequence[Unit]) -> None:
    """Write down the plan, or check that it is that of the unfinished merge.

    Args:
        worker: of this process.
        asked: the units that it will see to.

    Raises:
        InputError: an unfinished merge of another plan lies in the folder, or it is none to
            write to.
    """
    job, work = worker.job, worker.work
    _check_places(job, worker.counter.counts_from)
    is_anew = job.restart or not is_unfinished(job.out_path)
    written = sum(unit.written for unit in asked if work.receipt(unit) is None)
    check_output(job.out_path, written, [part.path for part in named_parts(job.config)])
    with writing_to(job.out_path):
        if is_anew and not job.is_shared:
            remove_work(job.out_path)
            remove_earlier_model(work.output)
        if is_anew:
            work.begin()
    difference = unfinished_merge(job.out_path).manifest.differs_from(work.manifest)
    if difference:
        raise InputError(
            f"output folder {job.out_path}: an unfinished merge lies in it, of {difference}. "
            "Finish it, choose another folder, or throw it away by --restart."
        )


def _run(engine: Engine, units: Sequence[Unit], job: MergeJob) -> None:
    """Do units of one kind, with a bar."""
    if not units:
        return
    size = {unit.number: unit.read + unit.written for unit in units}
    title = STEPS[units[0].kind].capitalize()
    with progress_in_bytes(sum(size.values()), title, quiet=job.options.quiet) as bar:
        for done, number in enumerate(engine(list(size)), start=1):
            bar.set_postfix_str(f"unit {done} of {len(size)}", refresh=False)
            bar.update(size[number])


def _check_places(job: MergeJob, counts: str | None) -> None:
    """Check that a merge removes nothing that it reads, and can move shards to their last place.

    Raises:
        InputError: the work folder lies on another disk, or holds an input or the output; or the
            counts are part of the model that is replaced.
    """
    out_path = job.out_path
    for path in (out_path, *(part.path for part in named_parts(job.config))):
        if WORK_FOLDER in Path(path).resolve().parts:
            raise InputError(
                f"{path} lies in the work folder of an unfinished merge, which is removed at its "
                "end. Choose another folder."
            )
    work = Path(out_path, WORK_FOLDER)
    if work.is_symlink() or work.is_mount():
        raise InputError(
            f"{work} is a link or another disk, from which shards cannot be moved to the output "
            "folder. Remove it, and choose an output folder with enough room."
        )
    if counts and Path(counts).resolve() == Path(out_path).resolve() / RECORD_NAME:
        raise InputError(
            f"statistics {counts}: they are part of the model in the output folder {out_path}, "
            "which this merge replaces. Copy the file elsewhere, or choose another folder."
        )


def _check_finished(job: MergeJob) -> None:
    """Check that the finished model in the output folder is that of this very merge, and say so.

    Raises:
        InputError: it is another one.
    """
    with without_trace(job) as looking:
        worker = Worker(looking)
    _check_places(job, worker.counter.counts_from)
    difference = _difference(Path(job.out_path), worker)
    if difference is not None:
        raise InputError(
            f"output folder {job.out_path}: a finished model lies in it, of {difference}, and no "
            "unfinished merge. Neither --units nor --finalise replaces a model: choose another "
            "folder, or run the first units alone with --restart, which removes it."
        )
    LOG.warning(
        "output folder %s: this merge is finished: nothing is left to do. --restart merges anew.",
        job.out_path,
    )


def _difference(folder: Path, worker: Worker) -> str | None:
    """The first thing in which a finished model differs from a plan's, in words."""
    try:
        found = read_file(folder / CONFIGURATION).decode()
        record = read_record(folder / RECORD_NAME)
    except (OSError, ValueError):
        return f"an unknown merge (it lacks {CONFIGURATION} or {RECORD_NAME})"
    recorder, configuration = worker.recorder, worker.job.configuration
    settings = settings_record(worker.counter.merges)
    other, weights = "another configuration", "weights that were changed afterwards"
    # Removing a model leaves mergekit's copy of the configuration, which may be of an earlier one.
    was = {other: (found, record.merge_method, record.settings), weights: record.written}
    now = {other: (configuration, recorder.method, settings), weights: written_files(folder)}
    return first_difference(was | by_model(record.models), now | by_model(recorder.inputs.models))


def progress_text(out_path: Path) -> str:
    """What ``mergekit-ram status FOLDER`` prints of a folder.

    Raises:
        InputError: there is no such folder, or its manifest is damaged.
    """
    if not out_path.is_dir():
        raise InputError(f"{out_path}: no such folder. Give the output folder of a merge.")
    if not is_unfinished(out_path):
        return f"{out_path}: no unfinished merge\n"
    work = unfinished_merge(out_path)
    lines = [f"{out_path}: an unfinished merge of {len(work.manifest.models)} models"]
    for kind, title in STEPS.items():
        units = work.units(kind)
        done = sum(work.receipt(unit) is not None for unit in units)
        if units:
            lines.append(f"{title:<9} {done} of {len(units)} units ({100 * done // len(units)} %)")
    return "\n".join([*lines, "The same command resumes from here; --restart throws it away.\n"])
