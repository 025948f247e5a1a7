"""What is kept in the work folder inside the output: the plan, and a receipt per finished unit.

::

    merged/.mergekit-ram/merge.json                the plan that this folder is about
                         unit-00007-1f0c9a3e.json  receipt: what unit 7 made, with its digest
                         unit-00007-1f0c9a3e.safetensors
                         statistics.json           the counts of all counting units

A receipt is written after what it vouches for, under another name and renamed, so that a
process that is killed at any moment leaves a unit either done or not begun. The plan's digest in
the names keeps apart what a worker brings that has outlived its driver, when another plan is begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import xxhash
from pydantic import BaseModel, ValidationError

from mergekit_ram.errors import InputError
from mergekit_ram.overlap import TensorOverlap
from mergekit_ram.record.schema import ModelRecord, Versions
from mergekit_ram.units import shard
from mergekit_ram.units.numbering import Unit

WORK_FOLDER = ".mergekit-ram"
MANIFEST = "merge.json"
STATISTICS = "statistics.json"
BEGIN_LOCK = "begin.lock"

RESTART = "With `--restart` the merge begins anew, and what was finished is thrown away"


class Manifest(BaseModel, frozen=True):
    """A plan as far as it decides the bytes of the output."""

    format: int = 1
    configuration: str
    """The YAML's text."""
    options: dict[str, Any]
    """mergekit's options that change what is written."""
    models: tuple[ModelRecord, ...]
    versions: Versions
    units: tuple[Unit, ...]

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that stand for the plan."""
        return xxhash.xxh3_64_hexdigest(self.model_dump_json().encode())

    def differs_from(self, other: Manifest) -> str | None:
        """The first thing in which two plans differ, in words."""
        if self.configuration != other.configuration:
            return "another configuration"
        for name in sorted(self.options.keys() | other.options.keys()):
            if self.options.get(name) != other.options.get(name):
                return f"--{name.replace('_', '-')} {other.options.get(name)}"
        if self.versions != other.versions:
            return f"other versions ({other.versions!r})"
        was = {model.model: model for model in self.models}
        for model in other.models:
            if was.get(model.model) != model:
                return f"model {model.model}, whose files have changed"
        return None if self == other else "other units of work"


class Receipt(BaseModel, frozen=True):
    """Says that a unit is done, and what it made."""

    unit: int
    file: str | None = None
    """In the work folder; none for a unit that counts, or whose tensors no model has."""
    digest: str = ""
    tensors: tuple[str, ...] = ()
    size: int = 0
    """Bytes of the tensors."""
    counts: tuple[tuple[str, TensorOverlap | None], ...] = ()
    """By tensor; None where it was copied."""
    seconds: float = 0.0


class WorkFolder:
    """The work folder of one output folder.

    Args:
        out_path: the output folder.
        plan: the digest of the plan whose units are meant.
    """

    def __init__(self, out_path: str | Path, plan: str = ""):
        self.output = Path(out_path)
        self.path = self.output / WORK_FOLDER
        self._plan = plan

    @property
    def exists(self) -> bool:
        """Whether a merge was begun here and not finished."""
        return (self.path / MANIFEST).is_file()

    def begin(self, manifest: Manifest) -> None:
        """Make the folder, for a plan that is begun."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._write(MANIFEST, manifest)

    def clear(self) -> None:
        """Forget what was begun here, but for the locks."""
        for file in self.path.glob("unit-*"):
            file.unlink()
        for name in (MANIFEST, STATISTICS):
            (self.path / name).unlink(missing_ok=True)

    def manifest(self) -> Manifest:
        """The plan that the folder is about.

        Raises:
            InputError: it cannot be read.
        """
        path = self.path / MANIFEST
        try:
            return Manifest.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path} is damaged: {reason}. {RESTART}.") from None

    def receipt(self, number: int) -> Receipt | None:
        """A unit's receipt; None where the unit is not done, or its receipt cannot be read."""
        try:
            return Receipt.model_validate_json(self.unit_file(number, "json").read_bytes())
        except (OSError, ValidationError):
            return None

    def enter(self, receipt: Receipt) -> None:
        """Say that a unit is done."""
        self._write(self.unit_file(receipt.unit, "json").name, receipt)

    def forget(self, number: int) -> None:
        """Take a unit as not done."""
        self.unit_file(number, "json").unlink(missing_ok=True)

    def unit_file(self, number: int, ending: str) -> Path:
        """What a unit writes: its receipt or its shard."""
        return self.path / f"unit-{number:05d}-{self._plan}.{ending}"

    def write_statistics(self, counts: BaseModel) -> None:
        """Keep the counts of the whole model, which every shard needs."""
        self._write(STATISTICS, counts)

    @property
    def statistics(self) -> Path:
        """The file of the counts."""
        return self.path / STATISTICS

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Let one process at a time see whether there is a plan, and write one if not."""
        self.path.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self.path / BEGIN_LOCK):
            yield

    def _write(self, name: str, content: BaseModel) -> None:
        write_durably(self.path / name, content.model_dump_json().encode())


def write_durably(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it, and give it its name."""
    shard.draft_of(path).write_bytes(content)
    shard.settle(path)
