"""The work folder inside the output: the plan of a merge, and a receipt for every finished unit.

::

    merged/.mergekit-ram/merge.json                the plan
                         unit-00007-1f0c9a3e.json  receipt: what unit 7 made, with its digest
                         unit-00007-1f0c9a3e.safetensors

A merge is begun when the work folder is there, which appears with its plan in it; a unit is done
when it has a receipt and its shard is there, or is in the output folder under its last name; a
merge is finished when the work folder is gone, which is renamed before it is removed.

Tasks that do units share the lock of the output folder and add files of their own. Whoever removes
or renames anything holds the lock alone. A receipt is written after what it vouches for, under
another name and renamed, so that a process that is killed at any moment leaves a unit either done
or not begun. The plan's digest in the names keeps the units of different plans apart.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from pydantic import ValidationError

from mergekit_ram.errors import InputError
from mergekit_ram.overlap import TensorOverlap
from mergekit_ram.plan.folder import remove_earlier_model
from mergekit_ram.record.schema import WORK_FOLDER
from mergekit_ram.units.manifest import Kind, Manifest, Unit
from mergekit_ram.units.shards import Receipt, digest_of, read_file, read_shard, write_durably

LOG = logging.getLogger("mergekit_ram")

# Beside the work folder: every worker needs the same merged adapters.
ADAPTERS = f"{WORK_FOLDER}.adapters"
MANIFEST = "merge.json"

RESTART = "With `--restart` the merge begins anew, and what was finished is thrown away"


def is_unfinished(out_path: str | Path) -> bool:
    """Whether a merge was begun in an output folder and not finished."""
    return Path(out_path, WORK_FOLDER, MANIFEST).is_file()


def unfinished_merge(out_path: str | Path) -> WorkFolder:
    """The work folder of the merge that was begun in an output folder.

    Raises:
        InputError: its plan cannot be read.
    """
    path = Path(out_path, WORK_FOLDER, MANIFEST)
    try:
        return WorkFolder(out_path, Manifest.model_validate_json(read_file(path)))
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is damaged: {reason}. {RESTART}.") from None


def remove_work(out_path: str | Path) -> None:
    """Remove the work folder, and whatever processes that were killed have left beside it."""
    path = Path(out_path, WORK_FOLDER)
    if path.is_dir():
        # At once, so that what is left of it is no unfinished merge wherever this is stopped.
        path.rename(_aside(path))
    for left in path.parent.glob(f"{WORK_FOLDER}-*"):
        shutil.rmtree(left, ignore_errors=True)


class WorkFolder:
    """The work folder of one plan.

    Args:
        out_path: the output folder.
        manifest: the plan.
    """

    def __init__(self, out_path: str | Path, manifest: Manifest):
        self.output = Path(out_path)
        self.manifest = manifest
        self._path = self.output / WORK_FOLDER
        is_safe = manifest.options.get("safe_serialization")
        self._stem, self._ending = ("model", "safetensors") if is_safe else ("pytorch_model", "bin")

    def units(self, kind: Kind) -> list[Unit]:
        """Those that count, or those that write a shard."""
        return [unit for unit in self.manifest.units if unit.kind == kind]

    def begin(self) -> None:
        """Make the folder with its plan in it, unless another process has made one.

        Raises:
            OSError: it cannot be made.
        """
        aside = _aside(self._path)
        aside.mkdir(parents=True)
        try:
            write_durably(aside / MANIFEST, self.manifest)
            # Never replaces a folder with anything in it.
            aside.rename(self._path)
        except OSError:
            if not is_unfinished(self.output):
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def receipt(self, unit: Unit) -> Receipt | None:
        """A unit's receipt; None where the unit is not done, or its receipt is not believed."""
        with suppress(OSError, ValueError):
            found = Receipt.model_validate_json(read_file(self._file(unit.number, "json")))
            if found.is_believed(self.manifest.digest, unit):
                return found
        return None

    def enter(self, receipt: Receipt) -> None:
        """Say that a unit is done."""
        write_durably(self._file(receipt.unit, "json"), receipt.sealed())

    def counts(self, kind: Kind) -> dict[str, TensorOverlap | None]:
        """The counts of all units of a kind, by tensor.

        Raises:
            InputError: a unit is not done.
        """
        receipts = {unit.number: self.receipt(unit) for unit in self.units(kind)}
        self.check_done([number for number, receipt in receipts.items() if receipt is None])
        return {name: counts for r in receipts.values() if r for name, counts in r.counts}

    def lacking(self, units: Iterable[Unit]) -> list[Unit]:
        """Those of some units that are not done; a damaged shard is told of and is not."""
        return [unit for unit in units if not self._is_done(unit)]

    def check_done(self, lacking: Sequence[int]) -> None:
        """Refuse to use the units of ``lacking`` numbers, in ascending order.

        Raises:
            InputError: naming them.
        """
        if lacking:
            raise InputError(
                f"output folder {self.output}: units that are needed first are not done: "
                f"{', '.join(_runs_of(lacking))}. Do them with --units, or all of them by the "
                "same command without --units and --finalise."
            )

    def shard(self, number: int) -> Path:
        """The file of a unit that writes."""
        return self._file(number, self._ending)

    def finish(self) -> None:
        """Give the shards of a merge whose units are all done their last names, with an index."""
        shards = self.units("shard")
        moved = [self._last_name(u) for u in shards if not self.shard(u.number).exists()]
        remove_earlier_model(self.output, kept=moved)
        weight_map: dict[str, str] = {}
        size = 0
        for unit in shards:
            path = self._last_name(unit)
            if path not in moved:
                os.replace(self.shard(unit.number), path)
            weight_map |= dict.fromkeys(unit.tensors, path.name)
            size += sum(tensor.nbytes for tensor in read_shard(path).values())
        if len(shards) > 1:
            index = {"metadata": {"total_size": size}, "weight_map": weight_map}
            path = self.output / f"{self._stem}.{self._ending}.index.json"
            path.write_text(json.dumps(index, indent=2), encoding="utf-8")

    def _is_done(self, unit: Unit) -> bool:
        receipt, path = self.receipt(unit), self.shard(unit.number)
        if receipt is None or unit.kind == "count":
            return receipt is not None
        if not path.exists():
            path = self._last_name(unit)  # an earlier try may have moved it
        tensors = read_shard(path)
        if tensors.keys() == {*unit.tensors} and digest_of(tensors) == receipt.digest:
            return True
        LOG.warning("%s is missing or damaged, and has to be made anew", self.shard(unit.number))
        return False

    def _last_name(self, unit: Unit) -> Path:
        """The file of a unit in the finished model."""
        shards, number = self.units("shard"), ""
        if len(shards) > 1:
            place = unit.number - shards[0].number + 1
            number = f"-{place:05d}-of-{len(shards):05d}"
        return self.output / f"{self._stem}{number}.{self._ending}"

    def _file(self, number: int, ending: str) -> Path:
        return self._path / f"unit-{number:05d}-{self.manifest.digest}.{ending}"


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}-{uuid.uuid4().hex}")


def _runs_of(numbers: Sequence[int]) -> Iterator[str]:
    """Numbers in ascending order, neighbours together: 3, 5 to 8."""
    for _, neighbours in groupby(enumerate(numbers), lambda entry: entry[1] - entry[0]):
        first, *rest = (number for _, number in neighbours)
        yield f"{first} to {rest[-1]}" if rest else str(first)
