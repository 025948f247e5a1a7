"""Identify files of weights by a sample of every tensor's bytes, or by stored checksums.

Size and header are equal for all checkpoints of one architecture. An agent that was trained
further differs from its former self in many of its parameters, so a few kilobytes of every
tensor tell the two apart, and reading those takes little time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pydantic import BaseModel, Field

from mergekit_ram.errors import InputError, reading
from mergekit_ram.overlap import Count, Items

if TYPE_CHECKING:
    from mergekit_ram.models.groups import PlannedLoads

WHOLE = 16 * 1024
"""Bytes up to which a tensor is read as a whole."""

WINDOW = 1024
"""Bytes that are read in one place."""

PLACES = 8
"""Where a larger tensor is read, from its first to its last bytes."""

DIGEST_LENGTH = 32
"""Hexadecimal digits."""

KEPT_DIGESTS = 4096

SAFETENSORS = ".safetensors"
WRITTEN = ("model*.safetensors", "pytorch_model*.bin")
"""Names of files that a merge writes its weights into."""

FileState = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, and number of the file's inode."""


class FileRecord(BaseModel, frozen=True):
    """A file of weights, identified without reading all of them."""

    name: str
    size: Count
    contents: str = Field(
        description="digest of its tensors' names, dtypes, shapes and a sample of their bytes"
    )


class ModelRecord(BaseModel, frozen=True):
    """The files that a model was read from."""

    model: str
    files: Items[FileRecord]


def written_files(folder: Path) -> tuple[FileRecord, ...]:
    """The files of weights that a merge wrote into a folder.

    Raises:
        InputError: a file is broken.
    """
    paths = (path for kind in WRITTEN for path in folder.glob(kind))
    return tuple(file_record(path, str(folder)) for path in sorted(paths))


class InputFiles:
    """The files of weights that a plan reads, as they are when it is made.

    Args:
        planned: of the plan.

    Raises:
        InputError: a file is missing or broken.
    """

    def __init__(self, planned: PlannedLoads):
        indexes = {load.model: load.index for loads in planned.values() for load in loads}
        paths = {
            model: [Path(index.base_path) / shard.filename for shard in index.shards]
            for model, index in sorted(indexes.items())
        }
        self._states = {path: (_state(path), model) for model in paths for path in paths[model]}
        self.models = tuple(
            ModelRecord(model=model, files=tuple(file_record(path, model) for path in files))
            for model, files in paths.items()
        )

    def check_unchanged(self) -> None:
        """Compare the files with their earlier state.

        Raises:
            InputError: naming the first file that differs.
        """
        for path, (was, model) in self._states.items():
            now = _state(path)
            if now != was:
                raise InputError(
                    f"model {model}: {path} has {'changed' if now else 'gone'} since the merge was "
                    "planned, so that counts and weights would be of different files. What was "
                    "written so far is no complete model and does not load: merge again when "
                    "nothing writes to the inputs."
                )


def _state(path: Path) -> FileState | None:
    """None of a file that is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def file_record(path: Path, model: str) -> FileRecord:
    """Identify a file of weights, safetensors or a pickle; computed once while the file stays.

    Args:
        path: of the file.
        model: its name in errors.

    Raises:
        InputError: the file cannot be read.
    """
    with reading(model, str(path), "Repair or re-download this checkpoint."):
        state = _state(path)
        return FileRecord(
            name=path.name, size=state[0] if state else 0, contents=_digest(path, state)
        )


@functools.lru_cache(maxsize=KEPT_DIGESTS)
def _digest(path: Path, state: FileState | None) -> str:
    """``state`` tells a file from its successor at the same place."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if path.suffix.lower() == SAFETENSORS:
            for part in _sampled(file):
                digest.update(part)
        elif zipfile.is_zipfile(file):
            # torch writes the checksum of every tensor; its folder has the name of the file.
            for entry in zipfile.ZipFile(file).infolist():
                name = entry.filename.partition("/")[2]
                digest.update(f"{name}\0{entry.file_size}\0{entry.CRC}\0".encode())
        else:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:DIGEST_LENGTH]


def _sampled(file: BinaryIO) -> Iterator[bytes]:
    """Name, dtype, shape, size and some bytes of every tensor in a file of safetensors."""
    length, size = int.from_bytes(file.read(8), "little"), Path(file.name).stat().st_size
    if length > size:
        raise ValueError("its header is longer than the file")
    header = json.loads(file.read(length))
    for name in sorted(header.keys() - {"__metadata__"}):
        tensor = header[name]
        begin, end = tensor["data_offsets"]
        if not 0 <= begin <= end <= size:
            raise ValueError(f"tensor {name} lies outside of the file")
        kind = f"{name}\0{tensor['dtype']} {tensor['shape']}\0{end - begin}\0"
        yield kind.encode(errors="surrogatepass")
        for start, stop in _places(end - begin):
            file.seek(8 + length + begin + start)
            yield file.read(stop - start)


def _places(size: int) -> list[tuple[int, int]]:
    """The parts of a tensor of ``size`` bytes to read: always the same, the ends included."""
    if size <= WHOLE:
        return [(0, size)]
    starts = ((size - WINDOW) * number // (PLACES - 1) for number in range(PLACES))
    return [(start, start + WINDOW) for start in starts]
