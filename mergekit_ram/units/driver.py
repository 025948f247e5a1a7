"""Merges by units: mergekit plans and finishes, units do what its executor would.

mergekit's ``run_merge`` runs as ever. Where it would execute its graph it calls
:func:`Driver.execute`, which counts and writes unit by unit, skips what an earlier try has
finished, and gives the shards their names; configuration, model card and tokenizer follow.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mergekit.graph import Task
from mergekit.tokenizer import TokenizerInfo

from mergekit_ram.errors import InputError
from mergekit_ram.overlap import TensorOverlap
from mergekit_ram.plan.earlier import remove_earlier_model
from mergekit_ram.plan.folder import check_output
from mergekit_ram.plan.lock import lock_folder
from mergekit_ram.progress import progress_in_bytes
from mergekit_ram.units import asked, shard
from mergekit_ram.units.engines import Engine, run_apart, run_here
from mergekit_ram.units.manifest import MANIFEST, Manifest, Receipt, WorkFolder
from mergekit_ram.units.numbering import PlannedUnits, Unit, cut
from mergekit_ram.units.work import Bench, Job, manifest_of

LOG = logging.getLogger("mergekit_ram")


@dataclass(frozen=True)
class How:
    """How units are run.

    Args:
        workers: processes; 1 is this one.
        engine: where they come from.
        only: the units to do, where other processes do the others; none to finalise.
        restart: throw away what an earlier try has finished.
    """

    workers: int = 1
    engine: Engine = Engine.LOCAL
    only: range | None = None
    restart: bool = False

    @property
    def finalises(self) -> bool:
        """Whether no unit is to be done, and a model is to be made of those that are."""
        return self.only is not None and not self.only


class Unfinished(BaseException):
    """Leaves ``run_merge`` before it makes a model of a folder that lacks units.

    No ``Exception``, since it is no failure and nobody on its way shall say that it is one.
    """


class Driver:
    """One try at one merge.

    Args:
        job: the merge.
        how: its units are run.
        held: closed when the merge ends; takes the lock of whoever finalises.
        inputs: folders that are read.
    """

    def __init__(self, job: Job, how: How, held: ExitStack, inputs: Sequence[str]):
        self.job = job
        self.inputs = inputs
        self.how = how
        self.held = held
        self.work = WorkFolder(job.out_path)

    def execute(self, targets: Sequence[Task[Any]]) -> Iterator[tuple[Any, Any]]:
        """In place of mergekit's executor.

        Yields:
            The task that builds a tokenizer, and what it built, where there is one.
        """
        plan = cut(targets, self.job.options.out_shard_size)
        manifest = manifest_of(self.job, plan)
        driver = os.getpid() if self.how.engine is Engine.LOCAL else 0
        self.job = replace(self.job, plan=manifest.digest, driver=driver)
        self.work = WorkFolder(self.job.out_path, manifest.digest)
        check_output(self.job.out_path, self._lacking_size(plan), self.inputs)
        asked.check_counts_stay(self.job.out_path, plan)
        self._check_units_exist(plan)
        with self.work.beginning():
            self._begin(plan, manifest)
        if self.how.finalises:
            asked.check_nothing_lacks(self.job.out_path, self._lacking(plan), len(plan.units))
        bench = Bench.of(self.job, plan)
        self._do(bench, plan.counts, "Counting overlaps")
        self._sum_up(plan)
        self._do(bench, plan.shards, "Merging")
        if self._lacking(plan):
            raise Unfinished
        if self.how.only is not None:
            self.held.callback(lock_folder(self.job.out_path).release)
        if plan.tokenizer is not None:
            built = bench.tokenizers.get(plan.tokenizer) or plan.tokenizer.execute()
            assert isinstance(built, TokenizerInfo)
            yield plan.tokenizer, built
        self._finish(plan)

    def _lacking(self, plan: PlannedUnits) -> list[int]:
        """The units that are not done."""
        return [unit.number for unit in plan.units if self.work.receipt(unit.number) is None]

    def _check_units_exist(self, plan: PlannedUnits) -> None:
        """Leave a range beyond the last unit alone: the last task of an array may have nothing."""
        beyond = asked.beyond(self.how.only or range(0), len(plan.units))
        if beyond and self.work.exists:
            LOG.warning("%s", beyond)
            raise Unfinished
        if beyond:
            raise asked.NothingToDo(beyond)

    def _lacking_size(self, plan: PlannedUnits) -> int:
        """Bytes that are still to be written."""
        lacking = (u for u in plan.shards if self.how.restart or not self.work.receipt(u.number))
        return sum(unit.written for unit in lacking)

    def _begin(self, plan: PlannedUnits, manifest: Manifest) -> None:
        if self.work.exists and not self.how.restart:
            difference = self.work.manifest().differs_from(manifest)
            if difference:
                raise InputError(
                    f"output folder {self.job.out_path}: an unfinished merge lies in it, of "
                    f"{difference}. Finish that one first, choose another folder, or merge with "
                    f"--restart, which throws away what was finished."
                )
            self._check_finished(plan)
            return
        if self.how.only is not None and not self.how.restart:
            self._check_not_finished(plan)
        self.work.clear()
        remove_earlier_model(self.work.output)
        self.work.begin(manifest)

    def _check_not_finished(self, plan: PlannedUnits) -> None:
        """Others may have done the last unit while this process planned."""
        if asked.holds_model(self.work.output):
            remove(self.work)
            asked.check_finished(self.work.output, self.job.configuration, plan)

    def _check_finished(self, plan: PlannedUnits) -> None:
        """Take a finished shard that is damaged as not done."""
        done, names = 0, self._names(plan)
        for unit in plan.units:
            receipt = self.work.receipt(unit.number)
            if receipt is None:
                continue
            place = self._place(receipt, names)
            if place is not None and not shard.is_intact(place, receipt.digest):
                LOG.warning("%s is missing or damaged, and is made anew", place)
                self.work.forget(unit.number)
            else:
                done += 1
        LOG.warning("going on: %d of %d units were finished earlier", done, len(plan.units))

    def _do(self, bench: Bench, units: Sequence[Unit], title: str) -> None:
        todo = [unit for unit in units if self.work.receipt(unit.number) is None]
        if self.how.only is not None:
            todo = [unit for unit in todo if unit.number in self.how.only]
        if not todo:
            return
        size = {unit.number: unit.read + unit.written for unit in todo}
        quiet = self.job.options.quiet
        with progress_in_bytes(sum(size.values()), title, quiet=quiet) as bar:
            done = itertools.count(1)

            def seen(number: int) -> None:
                bar.set_postfix_str(f"unit {next(done)} of {len(todo)}", refresh=False)
                bar.update(size[number])

            if self.how.workers == 1 and self.how.engine is Engine.LOCAL:
                run_here(bench, list(size), seen)
            else:
                run_apart(self.job, list(size), self.how.workers, self.how.engine, seen)

    def _sum_up(self, plan: PlannedUnits) -> None:
        """Complete the counts that the shards need."""
        if plan.counting is None:
            return
        if plan.ledger.recorded is not None:
            plan.ledger.complete(plan.ledger.recorded.statistics.tensors)
            return
        counted = self._counted(plan, plan.counts)
        if counted is None:
            if self.how.only is None or any(u.number in self.how.only for u in plan.shards):
                raise InputError(
                    f"output folder {self.job.out_path}: some of the units 0 to "
                    f"{len(plan.counts) - 1}, which count, are not done; no shard can be written "
                    "before. Run them first."
                )
            raise Unfinished
        statistics = plan.ledger.complete(counted)
        self.work.write_statistics(statistics)

    def _counted(self, plan: PlannedUnits, units: Sequence[Unit]) -> list[TensorOverlap] | None:
        """All counts in the plan's order; None where a unit is not done."""
        found: dict[str, TensorOverlap | None] = {}
        for unit in units:
            receipt = self.work.receipt(unit.number)
            if receipt is None:
                return None
            found |= dict(receipt.counts)
        ordered = (found.get(merge.output_weight.name) for merge in plan.ledger.merges)
        return [counts for counts in ordered if counts is not None]

    def _place(self, receipt: Receipt, names: Mapping[int, Path]) -> Path | None:
        """Where a finished shard is: in the work folder, or under its last name."""
        if receipt.file is None:
            return None
        path = self.work.path / receipt.file
        if path.exists():
            return path
        named = names.get(receipt.unit)
        return named if named is not None and named.exists() else path

    def _names(self, plan: PlannedUnits) -> dict[int, Path]:
        """The names of the shards of the finished model, by unit; empty before all are done."""
        receipts = [self.work.receipt(unit.number) for unit in plan.shards]
        if None in receipts:
            return {}
        written = [receipt for receipt in receipts if receipt is not None and receipt.file]
        stem, ending = (
            ("model", "safetensors")
            if self.job.options.safe_serialization
            else ("pytorch_model", "bin")
        )
        if len(written) == 1:
            return {written[0].unit: self.work.output / f"{stem}.{ending}"}
        return {
            receipt.unit: self.work.output / f"{stem}-{n:05d}-of-{len(written):05d}.{ending}"
            for n, receipt in enumerate(written, start=1)
        }

    def _finish(self, plan: PlannedUnits) -> None:
        """Give the shards their names, and write index and record."""
        plan.recorder.inputs.check_unchanged()
        if plan.ledger.statistics is None:
            counted = self._counted(plan, plan.shards)
            plan.ledger.complete(counted or [])
        names = self._names(plan)
        self._clear_output(names)
        weight_map: dict[str, str] = {}
        total = 0
        for number, path in names.items():
            receipt = self.work.receipt(number)
            assert receipt is not None
            place = self._place(receipt, names)
            if place is not None and place != path:
                os.replace(place, path)
            weight_map |= dict.fromkeys(receipt.tensors, path.name)
            total += receipt.size
        if len(names) > 1:
            stem = (
                "model.safetensors" if self.job.options.safe_serialization else "pytorch_model.bin"
            )
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            text = json.dumps(index, indent=2)
            (self.work.output / f"{stem}.index.json").write_text(text, encoding="utf-8")
        plan.recorder.write(self.job.out_path)

    def _clear_output(self, names: Mapping[int, Path]) -> None:
        """Remove what another program has left meanwhile and would be loaded with the shards.

        Those that an earlier try has moved into place go back first, and are left alone.
        """
        for number, path in names.items():
            receipt = self.work.receipt(number)
            if receipt is not None and self._place(receipt, names) == path:
                os.replace(path, self.work.path / str(receipt.file))
        remove_earlier_model(self.work.output)


def remove(work: WorkFolder) -> None:
    """Remove the work folder of a finished merge."""
    # First, so that what is left of it is no unfinished merge wherever this is interrupted.
    (work.path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(work.path, ignore_errors=True)
