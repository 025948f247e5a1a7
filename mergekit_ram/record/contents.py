"""Identify files of weights by a sample of every tensor's bytes.

Size and header are equal for all checkpoints of one architecture. An agent that was trained
further differs from its former self in many of its parameters, so a few kilobytes of every
tensor tell the two apart, and reading those takes little time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergekit_ram.errors import InputError, one_line
from mergekit_ram.record.schema import FileRecord, Finding, ModelRecord, OverlapRecord

if TYPE_CHECKING:
    import torch

    from mergekit_ram.models.groups import PlannedLoads

SEED = "mergekit-ram 1"
"""Of the places that are read; another one makes other digests."""

WHOLE = 16 * 1024
"""Bytes up to which a tensor is read as a whole."""

WINDOW = 1024
"""Bytes that are read in one place."""

BETWEEN = 6
"""Places between the first and the last."""

DIGEST_LENGTH = 32
"""Hexadecimal digits."""

KEPT_DIGESTS = 4096

SAFETENSORS = ".safetensors"
WRITTEN = ("model*.safetensors", "pytorch_model*.bin")
"""Names of files that a merge writes its weights into."""

UNREADABLE = (
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)
"""Errors that libraries raise at a broken file."""

FileState = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, and number of the file's inode."""

PARTS = ("size", "time of change", "identity")

Read = Callable[[int, int], bytes]
"""Reads the bytes of a tensor from one place to another."""


def model_records(planned: PlannedLoads) -> tuple[ModelRecord, ...]:
    """The files of all models that a plan reads.

    Raises:
        InputError: a file is missing or broken.
    """
    files: dict[str, list[Path]] = {}
    for path, model in _files_of(planned).items():
        files.setdefault(model, []).append(path)
    return tuple(
        ModelRecord(model=model, files=tuple(file_record(path, model) for path in paths))
        for model, paths in sorted(files.items())
    )


def _files_of(planned: PlannedLoads) -> dict[Path, str]:
    """The files of weights that a plan reads, each with its model."""
    indexes = {load.model: load.index for loads in planned.values() for load in loads}
    return {
        Path(index.base_path) / shard.filename: model
        for model, index in indexes.items()
        for shard in index.shards
    }


def written_files(folder: Path) -> tuple[FileRecord, ...]:
    """The files of weights that a merge wrote into a folder.

    Raises:
        InputError: a file is broken.
    """
    paths = (path for kind in WRITTEN for path in folder.glob(kind))
    return tuple(file_record(path, str(folder)) for path in sorted(paths))


def compared_with_weights(record: OverlapRecord, folder: Path) -> OverlapRecord:
    """The record of a merge, with a finding if the weights in its folder are others.

    Neither torch nor mergekit is imported where weights are safetensors.

    Args:
        record: that was read from the folder.
        folder: of a merged model; its weights may have been moved away.
    """
    paths = {path.name: path for kind in WRITTEN for path in folder.glob(kind)}
    written = {file.name: file for file in record.written or ()}
    if not paths or not written:
        return record
    problems = []
    for name in sorted(paths.keys() | written.keys()):
        if name not in written:
            problems.append(f"{name} is not of this merge")
        elif name not in paths:
            problems.append(f"{name} is missing")
        elif not _is_same(paths[name], written[name]):
            problems.append(f"{name} has changed")
    if not problems:
        return record
    finding = Finding(
        code="other-weights",
        text=f"This record is not that of the weights beside it: {', '.join(problems)}.",
    )
    return record.model_copy(update={"findings": (finding, *record.findings)})


def _is_same(path: Path, written: FileRecord) -> bool:
    try:
        return file_record(path, str(path.parent)) == written
    except InputError:
        return False


@dataclass(frozen=True)
class InputFiles:
    """The files of weights of one plan, as they were when it was made."""

    models: dict[Path, str]
    states: dict[Path, FileState | None]

    @classmethod
    def of(cls, planned: PlannedLoads) -> InputFiles:
        """Look up the state of all files that a plan reads."""
        models = _files_of(planned)
        return cls(models, {path: _state(path) for path in models})

    def check_unchanged(self) -> None:
        """Compare the files with their earlier state.

        Raises:
            InputError: naming the first file that differs, and in what.
        """
        for path, was in self.states.items():
            now = _state(path)
            if now != was:
                raise InputError(
                    f"model {self.models[path]}: {path} {_difference(was, now)} since the merge "
                    "was planned, so that counts and weights would be of different files. What "
                    "was written so far is no complete model and does not load: merge again when "
                    "nothing writes to the inputs."
                )


def _state(path: Path) -> FileState | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _difference(was: FileState | None, now: FileState | None) -> str:
    if was is None or now is None:
        return "has gone" if now is None else "has come"
    different = [part for part, a, b in zip(PARTS, was, now, strict=True) if a != b]
    return f"has changed ({', '.join(different)})"


def file_record(path: Path, model: str) -> FileRecord:
    """Identify a file of weights, safetensors or a pickle; computed once while the file stays.

    Args:
        path: of the file.
        model: its name in errors.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        state = _state(path)
        digest = _digest(path, state)
    except UNREADABLE as error:
        raise InputError(
            f"model {model}: cannot read {path}: {one_line(error)}. Repair or re-download this "
            "checkpoint."
        ) from None
    return FileRecord(name=path.name, size=state[0] if state else 0, contents=digest)


@functools.lru_cache(maxsize=KEPT_DIGESTS)
def _digest(path: Path, state: FileState | None) -> str:
    """``state`` tells a file from its successor at the same place."""
    digest = hashlib.sha256()
    is_safetensors = path.suffix.lower() == SAFETENSORS
    for name, kind, size, read in _safetensors(path) if is_safetensors else _pickled(path):
        digest.update(f"{name}\0{kind}\0{size}\0".encode(errors="surrogatepass"))
        for start, end in _places(name, size):
            digest.update(read(start, end))
    return digest.hexdigest()[:DIGEST_LENGTH]


def _places(name: str, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a tensor of ``size`` bytes to read: always the same, the ends included."""
    if size <= WHOLE:
        yield 0, size
        return
    seed = hashlib.sha256(f"{SEED} {name} {size}".encode(errors="surrogatepass")).digest()
    starts = {0, size - WINDOW}
    for number in range(BETWEEN):
        drawn = int.from_bytes(seed[4 * number : 4 * number + 4], "little") / 2**32
        starts.add(int(drawn * (size - WINDOW)))
    yield from ((start, start + WINDOW) for start in sorted(starts))


def _safetensors(path: Path) -> Iterator[tuple[str, str, int, Read]]:
    """Name, dtype with shape, size and reader of every tensor, by the header of the file."""
    with path.open("rb", buffering=0) as file:
        length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
        if length > size:
            raise ValueError("its header is longer than the file")
        header: dict[str, Any] = json.loads(file.read(length))
        for name in sorted(header.keys() - {"__metadata__"}):
            begin, end = header[name]["data_offsets"]
            if not 0 <= begin <= end <= size:
                raise ValueError(f"tensor {name} lies outside of the file")

            def read(start: int, stop: int, begin: int = 8 + length + begin) -> bytes:
                file.seek(begin + start)
                return file.read(stop - start)

            yield name, f"{header[name]['dtype']} {header[name]['shape']}", end - begin, read


def _pickled(path: Path) -> Iterator[tuple[str, str, int, Read]]:
    """The same of a pickle, mapped into memory where its format allows that."""
    import torch

    try:
        entries = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:
        # Pickles of torch before 1.6 cannot be mapped.
        entries = torch.load(path, map_location="cpu", weights_only=True)
    entries = entries.get("state_dict", entries)
    for name in sorted(name for name, entry in entries.items() if isinstance(entry, torch.Tensor)):
        tensor = entries[name].contiguous().reshape(-1)
        data = tensor.view(torch.uint8) if tensor.numel() else tensor

        def read(start: int, stop: int, data: torch.Tensor = data) -> bytes:
            return data[start:stop].numpy().tobytes()

        kind = f"{tensor.dtype} {list(entries[name].shape)}"
        yield str(name), kind, tensor.numel() * tensor.itemsize, read
