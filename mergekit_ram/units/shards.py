"""Files of a work folder: receipts of units and shards, written whole or not at all."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mergekit_ram.overlap import TensorOverlap
from mergekit_ram.units.manifest import ALIGNED, Unit, digest_of_text

# Bytes of a plan or receipt; those of a model of 100,000 tensors take a few megabytes.
LARGEST_FILE = 64_000_000

Tensors = Mapping[str, torch.Tensor]


class Receipt(BaseModel, frozen=True):
    """Says that a unit is done, and what it made.

    Args:
        plan: the plan's digest.
        unit: its number.
        digest: of the shard's tensors; none of a unit that counts.
        counts: by tensor; none of one that was copied.
        check: a digest of all the above.
    """

    plan: str
    unit: int
    digest: str = ""
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
            (self.plan, self.unit, self.check) == (plan, unit.number, self._own_digest())
            and (unit.kind == "shard" or counted == unit.tensors)
            and all(n in numels and _are_possible(c, n, numels[n]) for n, c in self.counts)
        )

    def _own_digest(self) -> str:
        return digest_of_text(self.model_dump_json(exclude={"check"}))


def _are_possible(counts: TensorOverlap | None, name: str, numel: int) -> bool:
    """Whether counts can be those of a tensor of ``numel`` parameters, 0 if it is copied."""
    if counts is None:
        return numel == 0
    degrees = (agent.overlap_degree for agent in counts.agents)
    # A parameter that k + 1 agents changed is counted once by each of them.
    changed = [
        divmod(sum(column), others + 1) for others, column in enumerate(zip(*degrees, strict=True))
    ]
    is_whole = all(rest == 0 for _, rest in changed)
    is_of_tensor = counts.name == name and numel in (counts.numel, ALIGNED)
    return is_of_tensor and is_whole and sum(once for once, _ in changed) <= counts.numel


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


def read_shard(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a finished shard, mapped into memory; none where it is no whole file."""
    try:
        if not path.is_file():
            return {}
        if path.suffix == ".safetensors":
            return load_file(path)
        return dict(torch.load(path, weights_only=True, mmap=True))
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, LookupError):
        return {}


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
