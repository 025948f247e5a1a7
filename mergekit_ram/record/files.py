"""The files of weights that a model was read from, or that a merge wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mergekit.io import ShardedTensorIndex
from safetensors import SafetensorError

from mergekit_ram.merges.loads import Load, PlannedLoads, short_digest
from mergekit_ram.models.checkpoints import broken, read_shard, shard_path
from mergekit_ram.record.contents import contents_digest
from mergekit_ram.record.schema import FileRecord, ModelRecord


def model_records(planned: PlannedLoads) -> tuple[ModelRecord, ...]:
    """The files of all models that a plan reads.

    Raises:
        InputError: a file is missing or broken.
    """
    loads: dict[str, Load] = {}
    for below in planned.values():
        for load in below:
            loads.setdefault(load.model, load)
    return tuple(
        ModelRecord(model=name, files=tuple(_describe_files(load.index, load.model)))
        for name, load in sorted(loads.items())
    )


def written_files(folder: Path) -> tuple[FileRecord, ...]:
    """The files of weights that are loaded from a folder.

    Raises:
        InputError: there are none, or they are broken.
    """
    model = str(folder)
    try:
        index = ShardedTensorIndex.from_disk(model)
    except (RuntimeError, KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise broken(model, folder, error) from None
    return tuple(_describe_files(index, model))


def _describe_files(index: ShardedTensorIndex, model: str) -> Iterator[FileRecord]:
    """A checkpoint's files, told apart by their sizes, headers, and samples of their contents."""
    for shard in index.shards:
        path = shard_path(index, shard.filename)
        found = read_shard(path, index.is_safetensors, model)
        lines = sorted(f"{name} {header.shape} {header.dtype}" for name, header in found.items())
        yield FileRecord(
            name=shard.filename,
            size=path.stat().st_size,
            header=short_digest(lines),
            contents=contents_digest(path, index.is_safetensors, model),
        )
