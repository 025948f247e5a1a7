"""What is in a file of weights, told by a sample of every tensor's bytes.

Size and header are equal for all checkpoints of one architecture. An agent that was trained on
differs from its former self in a good part of its parameters, so that a few kilobytes of every
tensor tell the two apart, at the cost of reading those.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergekit_ram.errors import InputError, one_line

if TYPE_CHECKING:
    import torch

SEED = "mergekit-ram 1"
"""Of the places that are looked at; another one makes other digests."""

WHOLE = 16 * 1024
"""Bytes up to which all of a tensor is looked at."""

WINDOW = 1024
"""Bytes that are looked at in one place."""

BETWEEN = 6
"""Places between the first and the last."""

DIGEST_LENGTH = 32
"""Hexadecimal digits."""

KEPT_DIGESTS = 4096

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
"""What reading a broken file ends in, by whichever library."""

Read = Callable[[int, int], bytes]
"""The bytes of a tensor from one place to another."""


def contents_digest(path: Path, is_safetensors: bool, model: str) -> str:
    """A digest of the tensors in a file, each with its name; computed once while it stays.

    Args:
        path: of the file.
        is_safetensors: or a pickle of torch.
        model: what to call it in errors.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        status = path.stat()
        state = (status.st_size, status.st_mtime_ns, status.st_ino)
        return _digest(path, is_safetensors, state)
    except UNREADABLE as error:
        raise InputError(
            f"model {model}: cannot read {path}: {one_line(error)}. Repair or re-download this "
            "checkpoint."
        ) from None


@functools.lru_cache(maxsize=KEPT_DIGESTS)
def _digest(path: Path, is_safetensors: bool, state: tuple[int, ...]) -> str:
    """``state`` tells a file from its successor at the same place."""
    digest = hashlib.sha256()
    for name, size, read in _safetensors(path) if is_safetensors else _pickled(path):
        digest.update(f"{name}\0{size}\0".encode(errors="surrogatepass"))
        for start, end in _places(name, size):
            digest.update(read(start, end))
    return digest.hexdigest()[:DIGEST_LENGTH]


def _places(name: str, size: int) -> Iterator[tuple[int, int]]:
    """Where to look at a tensor of ``size`` bytes: always the same, the ends included."""
    if size <= WHOLE:
        yield 0, size
        return
    seed = hashlib.sha256(f"{SEED} {name} {size}".encode(errors="surrogatepass")).digest()
    starts = {0, size - WINDOW}
    for number in range(BETWEEN):
        drawn = int.from_bytes(seed[4 * number : 4 * number + 4], "little") / 2**32
        starts.add(int(drawn * (size - WINDOW)))
    yield from ((start, start + WINDOW) for start in sorted(starts))


def _safetensors(path: Path) -> Iterator[tuple[str, int, Read]]:
    """The tensors of a file in alphabetical order, by the offsets in its header."""
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

            yield name, end - begin, read


def _pickled(path: Path) -> Iterator[tuple[str, int, Read]]:
    """The same of a pickle, mapped where its format allows that."""
    import torch

    try:
        entries = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:
        # The format of torch before 1.6 has no places to map.
        entries = torch.load(path, map_location="cpu", weights_only=True)
    entries = entries.get("state_dict", entries)
    for name in sorted(name for name, entry in entries.items() if isinstance(entry, torch.Tensor)):
        tensor = entries[name].contiguous().reshape(-1)
        data = tensor.view(torch.uint8) if tensor.numel() else tensor

        def read(start: int, stop: int, data: torch.Tensor = data) -> bytes:
            return data[start:stop].numpy().tobytes()

        yield str(name), tensor.numel() * tensor.itemsize, read
