"""Makes the model of units that are done, and compares a finished model with a plan."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from mergekit_ram.errors import InputError
from mergekit_ram.plan.folder import remove_earlier_model
from mergekit_ram.record.check import read_record
from mergekit_ram.record.contents import written_files
from mergekit_ram.record.merge import settings_record
from mergekit_ram.record.schema import RECORD_NAME
from mergekit_ram.units.cut import PlannedUnits, Unit
from mergekit_ram.units.folder import is_intact
from mergekit_ram.units.identity import by_model, first_difference
from mergekit_ram.units.job import MergeJob, counted

LOG = logging.getLogger("mergekit_ram")

# mergekit writes it beside a model.
CONFIGURATION = "mergekit_config.yml"


class Finisher:
    """Gives finished shards their last names, under the lock of the folder alone.

    Args:
        job: the merge, with its plan's digest.
        plan: the same, as planned here.
    """

    def __init__(self, job: MergeJob, plan: PlannedUnits):
        self.job = job
        self.plan = plan
        self.work = job.work
        is_safe = job.options.safe_serialization
        self._stem, self._ending = ("model", "safetensors") if is_safe else ("pytorch_model", "bin")

    def lacking(self, units: Iterable[Unit]) -> list[Unit]:
        """Those of some units that are not done; a damaged shard is told of and is not."""
        return [unit for unit in units if not self._is_done(unit)]

    def finish(self) -> None:
        """Give the shards their names, and write index and record."""
        self.plan.recorder.inputs.check_unchanged()
        if self.plan.counter.statistics is None:
            self.plan.counter.complete(counted(self.plan, self.work, self.plan.shards))
        receipts = self.work.receipts(self.plan.shards)
        self.work.mark_finishing()
        # Those that an earlier try has moved go back, and are not taken for somebody else's.
        for unit in self.plan.shards:
            if self._place(unit) == self._last_name(unit):
                os.replace(self._last_name(unit), self.work.shard(unit.number))
        remove_earlier_model(self.work.output)
        weight_map: dict[str, str] = {}
        size = 0
        for unit, receipt in zip(self.plan.shards, receipts, strict=True):
            path = self._last_name(unit)
            os.replace(self.work.shard(unit.number), path)
            weight_map |= dict.fromkeys(receipt.tensors, path.name)
            size += receipt.size
        if len(self.plan.shards) > 1:
            index = {"metadata": {"total_size": size}, "weight_map": weight_map}
            path = self.work.output / f"{self._stem}.{self._ending}.index.json"
            path.write_text(json.dumps(index, indent=2), encoding="utf-8")
        self.plan.recorder.write(self.job.out_path)

    def _is_done(self, unit: Unit) -> bool:
        receipt = self.work.receipt(unit)
        if receipt is None or unit.kind == "count":
            return receipt is not None
        place = self._place(unit)
        if is_intact(place, receipt.digest):
            return True
        LOG.warning("%s is missing or damaged, and has to be made anew", place)
        return False

    def _place(self, unit: Unit) -> Path:
        """Where a finished shard is: in the work folder, or under its last name."""
        path, last = self.work.shard(unit.number), self._last_name(unit)
        return last if self.work.is_finishing and not path.exists() and last.exists() else path

    def _last_name(self, unit: Unit) -> Path:
        """The file of a unit in the finished model."""
        shards = self.plan.shards
        number = ""
        if len(shards) > 1:
            place = unit.number - shards[0].number + 1
            number = f"-{place:05d}-of-{len(shards):05d}"
        return self.work.output / f"{self._stem}{number}.{self._ending}"


def check_is_finished(job: MergeJob, plan: PlannedUnits) -> None:
    """Check that the finished model in the output folder is that of this very merge.

    Raises:
        InputError: it is another one.
    """
    difference = _difference(Path(job.out_path), job.configuration, plan)
    if difference is not None:
        raise InputError(
            f"output folder {job.out_path}: a finished model lies in it, of {difference}, and no "
            "unfinished merge. Neither --units nor --finalise replaces a model: choose another "
            "folder, or run the first units alone with --restart, which removes it."
        )


def _difference(folder: Path, configuration: str, plan: PlannedUnits) -> str | None:
    """The first thing in which a finished model differs from a plan's, in words."""
    try:
        found = (folder / CONFIGURATION).read_text(encoding="utf-8")
        record = read_record(folder / RECORD_NAME)
    except (OSError, UnicodeError, InputError):
        return f"an unknown merge (it lacks {CONFIGURATION} or {RECORD_NAME})"
    recorder, settings = plan.recorder, settings_record(plan.counter.merges)
    weights = "weights that were changed afterwards"
    # Removing a model leaves mergekit's copy of the configuration, which may be of an earlier one.
    was = {
        "another configuration": (found, record.merge_method, record.settings),
        **by_model(record.models),
        weights: record.written,
    }
    now = {
        "another configuration": (configuration, recorder.method, settings),
        **by_model(recorder.inputs.models),
        weights: written_files(folder),
    }
    return first_difference(was, now)
