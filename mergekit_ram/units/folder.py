"""The work folder inside the output: the plan of a merge, and a receipt for every finished unit.

::

    merged/.mergekit-ram/merge.json                the plan
                         unit-00007-1f0c9a3e.json  receipt: what unit 7 made, with its digest
                         unit-00007-1f0c9a3e.safetensors
                         finishing                 shards are getting their names

A merge is begun when the work folder is there, which appears with its plan in it; its units are
done when each has a receipt; it is finishing when the file of that name is there too; it is
finished when the work folder is gone, which is renamed before it is removed.

Tasks that do units share the lock of the output folder and add files of their own. Whoever removes
or renames anything holds the lock alone. A receipt is written after what it vouches for, under
another name and renamed, so that a process that is killed at any moment leaves a unit either done
or not begun. The plan's digest in the names keeps the units of different plans apart.
"""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
import xxhash
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mergekit_ram.errors import InputError
from mergekit_ram.overlap import TensorOverlap
from mergekit_ram.record.schema import WORK_FOLDER as WORK_FOLDER
from mergekit_ram.units.cut import ALIGNED, Unit, runs_of
from mergekit_ram.units.identity import Manifest, digest_of_text

# Beside the work folder: every worker needs the same merged adapters.
ADAPTERS = f"{WORK_FOLDER}.adapters"
MANIFEST = "merge.json"
FINISHING = "finishing"

# Bytes of a plan or receipt; those of a model of 100,000 tensors take a few megabytes.
LARGEST_FILE = 64_000_000

RESTART = "With `--restart` the merge begins anew, and what was finished is thrown away"

Tensors = Mapping[str, torch.Tensor]


class Receipt(BaseModel, frozen=True):
    """Says that a unit is done, and what it made.

    Args:
        plan: the plan's digest.
        unit: its number.
        digest: of the shard's tensors; none of a unit that counts.
        tensors: their names.
        size: their bytes.
        counts: by tensor; none of one that was copied.
        check: a digest of all the above.
    """

    plan: str
    unit: int
    digest: str = ""
    tensors: tuple[str, ...] = ()
    size: int = 0
    counts: tuple[tuple[str, TensorOverlap | None], ...] = ()
    check: str = ""

    def sealed(self) -> Receipt:
        """The same receipt with its own digest."""
        return self.model_copy(update={"check": self._own_digest()})

    def is_believed(self, plan: str, unit: Unit) -> bool:
        """Whether it is whole, vouches for a unit of a plan, and is possible."""
        numels = dict(zip(unit.tensors, unit.numels, strict=True))
        counted = tuple(name for name, _ in self.counts)
        return (
            (self.plan, self.unit) == (plan, unit.number)
            and self.check == self._own_digest()
            and (counted if unit.kind == "count" else self.tensors) == unit.tensors
            and all(n in numels and _are_possible(c, n, numels[n]) for n, c in self.counts)
        )

    def _own_digest(self) -> str:
        return digest_of_text(self.model_dump_json(exclude={"check"}))


def _are_possible(counts: TensorOverlap | None, name: str, numel: int) -> bool:
    """Whether counts can be those of a tensor of ``numel`` parameters."""
    if counts is None or counts.name != name or numel not in (counts.numel, ALIGNED):
        return counts is None and numel == 0
    degrees = [agent.overlap_degree for agent in counts.agents]
    totals = [sum(column) for column in zip_longest(*degrees, fillvalue=0)]
    # A parameter that k + 1 agents changed is counted once by each of them.
    changed = [divmod(total, others + 1) for others, total in enumerate(totals)]
    is_negative = any(count < 0 for degree in degrees for count in degree)
    is_odd = any(rest for _, rest in changed)
    return not is_negative and not is_odd and sum(once for once, _ in changed) <= counts.numel


class WorkFolder:
    """The work folder of one output folder.

    Args:
        out_path: the output folder.
        plan: the digest of the plan whose units are meant.
        ending: of its shards' names.
    """

    def __init__(self, out_path: str | Path, plan: str = "", ending: str = "safetensors"):
        self.output = Path(out_path)
        self.path = self.output / WORK_FOLDER
        self._plan = plan
        self._ending = ending

    @property
    def exists(self) -> bool:
        """Whether a merge was begun here and not finished."""
        return (self.path / MANIFEST).is_file()

    @property
    def is_finishing(self) -> bool:
        """Whether the shards are getting the names of the finished model."""
        return (self.path / FINISHING).is_file()

    def begin(self, manifest: Manifest) -> None:
        """Make the folder with its plan in it, unless another process has made one.

        Raises:
            OSError: it cannot be made.
        """
        aside = self.output / f"{WORK_FOLDER}-{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        try:
            write_durably(aside / MANIFEST, manifest)
            # Never replaces a folder with anything in it.
            aside.rename(self.path)
        except OSError:
            if not self.exists:
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def mark_finishing(self) -> None:
        """Say that shards will be renamed from now on."""
        (self.path / FINISHING).touch()

    def remove(self) -> None:
        """Remove the folder, and whatever processes that were killed have left beside it."""
        if self.path.is_dir():
            # At once, so that what is left of it is no unfinished merge wherever this is stopped.
            self.path.rename(self.output / f"{WORK_FOLDER}-{uuid.uuid4().hex}")
        for left in self.output.glob(f"{WORK_FOLDER}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def manifest(self) -> Manifest:
        """The plan that the folder is about.

        Raises:
            InputError: it cannot be read.
        """
        path = self.path / MANIFEST
        try:
            return Manifest.model_validate_json(read_file(path))
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path} is damaged: {reason}. {RESTART}.") from None

    def receipt(self, unit: Unit) -> Receipt | None:
        """A unit's receipt; None where the unit is not done, or its receipt is not believed."""
        try:
            found = Receipt.model_validate_json(read_file(self._receipt(unit.number)))
        except (OSError, ValidationError):
            return None
        return found if found.is_believed(self._plan, unit) else None

    def receipts(self, units: Iterable[Unit]) -> list[Receipt]:
        """The receipts of finished units.

        Raises:
            InputError: some are not done.
        """
        receipts = {unit.number: self.receipt(unit) for unit in units}
        self.check_done([number for number, receipt in receipts.items() if receipt is None])
        return [receipt for receipt in receipts.values() if receipt is not None]

    def check_done(self, lacking: Sequence[int]) -> None:
        """Refuse to use the units of ``lacking`` numbers, in ascending order.

        Raises:
            InputError: naming them.
        """
        if lacking:
            numbers = ", ".join(runs_of(lacking))
            raise InputError(
                f"output folder {self.output}: units that are needed first are not done: "
                f"{numbers}. Do them with --units, or all of them by the same command without "
                "--units and --finalise."
            )

    def enter(self, receipt: Receipt) -> None:
        """Say that a unit is done."""
        write_durably(self._receipt(receipt.unit), receipt.sealed())

    def forget(self, unit: Unit) -> None:
        """Take a unit as not done."""
        self._receipt(unit.number).unlink(missing_ok=True)

    def shard(self, number: int) -> Path:
        """The file of a unit that writes."""
        return self.path / f"unit-{number:05d}-{self._plan}.{self._ending}"

    def _receipt(self, number: int) -> Path:
        return self.path / f"unit-{number:05d}-{self._plan}.json"


def read_file(path: Path) -> bytes:
    """The content of a regular file of bounded size.

    Raises:
        OSError: it cannot be read, or is no such file.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is no regular file")  # and might never end
    if path.stat().st_size > LARGEST_FILE:
        raise OSError(f"it has more than {LARGEST_FILE} bytes")
    return path.read_bytes()


def write_durably(path: Path, content: BaseModel) -> None:
    """Write a file under another name, flush it, and give it its name."""
    draft = _draft_of(path)
    draft.write_bytes(content.model_dump_json().encode())
    settle(draft, path)


class MergedTensors:
    """Takes the tensors that mergekit saves, in place of its writer."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def save_tensor(self, name: str, tensor: torch.Tensor, clone: bool = False) -> None:
        """As mergekit's writer does; a view of a mapped file is no memory of the shard's own."""
        tensor = tensor.contiguous().cpu()
        self.found[name] = tensor.clone() if clone else tensor


def write_shard(tensors: Tensors, path: Path) -> Path:
    """Write a shard under another name, which is returned."""
    draft = _draft_of(path)
    if path.suffix == ".safetensors":
        save_file(dict(tensors), draft, metadata={"format": "pt"})
    else:
        torch.save(dict(tensors), draft)
    return draft


def settle(draft: Path, path: Path) -> None:
    """Flush a file and give it its name."""
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def is_intact(path: Path, digest: str) -> bool:
    """Whether a finished shard holds what was written."""
    try:
        if not path.is_file():
            return False
        if path.suffix == ".safetensors":
            return digest_of(load_file(path)) == digest
        return digest_of(torch.load(path, weights_only=True, mmap=True)) == digest
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, LookupError):
        return False


def digest_of(tensors: Tensors) -> str:
    """A digest of names, dtypes, shapes and bytes, whatever file they lie in."""
    hasher = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hasher.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def _draft_of(path: Path) -> Path:
    """A name of this process alone for a file that is not done."""
    return path.with_name(f"{path.name}.{socket.gethostname()}-{uuid.uuid4().hex}.part")
