"""The files of weights that a model was read from."""

from __future__ import annotations

from collections.abc import Iterator

from mergekit_ram.merges.headers import read_shard, shard_path
from mergekit_ram.merges.loads import Load, PlannedLoads, short_digest
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
        ModelRecord(model=name, files=tuple(_describe_files(load)))
        for name, load in sorted(loads.items())
    )


def _describe_files(load: Load) -> Iterator[FileRecord]:
    """A checkpoint's files, told apart by their sizes and headers."""
    for shard in load.index.shards:
        path = shard_path(load.index, shard.filename)
        found = read_shard(path, load.index.is_safetensors, load.model)
        lines = sorted(f"{name} {header.shape} {header.dtype}" for name, header in found.items())
        yield FileRecord(name=shard.filename, size=path.stat().st_size, header=short_digest(lines))
