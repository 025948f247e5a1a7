"""What a checkpoint says about its tensors without reading them: names, shapes, dtypes.

Broken files are found here, before anybody computes for hours.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from mergekit.io import ShardedTensorIndex
from safetensors import safe_open

from mergekit_ram.errors import InputError, one_line

SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""safetensors' names of dtypes; the packed ones that torch lacks count as ``uint8``."""


KEPT_HEADERS = 4096
"""Files whose headers are kept, for every step of a plan that asks for them again."""


@dataclass(frozen=True)
class TensorHeader:
    """A stored tensor's shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.numel * self.dtype.itemsize

    def as_meta(self) -> torch.Tensor:
        """A tensor without data, for code that works out shapes."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


def shard_path(index: ShardedTensorIndex, filename: str) -> Path:
    """Where a shard of a checkpoint lies."""
    return Path(index.base_path) / filename


def read_shard(path: Path, is_safetensors: bool, model: str) -> dict[str, TensorHeader]:
    """The tensors of one file of weights, by name.

    Every check and record of a plan asks here, so the file is opened once as long as it stays
    the same.

    Raises:
        InputError: the file is missing, empty or broken.
    """
    if not path.is_file():
        raise broken(model, path, "the file is missing")
    if path.stat().st_size == 0:
        raise broken(model, path, "the file is empty")
    try:
        status = path.stat()
        state = (status.st_size, status.st_mtime_ns, status.st_ino)
        return _read_unchanged(path, is_safetensors, state)
    except Exception as error:  # readers of files fail in many ways
        raise broken(model, path, _problem(path, error)) from error


LFS_MARK = b"version https://git-lfs"


def _problem(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        if file.read(len(LFS_MARK)) == LFS_MARK:
            return "it is a pointer of Git LFS and no weights (`git lfs pull` fetches them)"
    return one_line(error)


@functools.lru_cache(maxsize=KEPT_HEADERS)
def _read_unchanged(
    path: Path, is_safetensors: bool, state: tuple[int, ...]
) -> dict[str, TensorHeader]:
    """``state`` tells a file from its successor at the same place."""
    return _read_safetensors(path) if is_safetensors else _read_pickle(path)


def _read_safetensors(path: Path) -> dict[str, TensorHeader]:
    headers = {}
    with safe_open(path, framework="pt") as shard:
        for name in shard.keys():  # noqa: SIM118  # the handle is no mapping
            stored = shard.get_slice(name)
            dtype = SAFETENSORS_DTYPES.get(stored.get_dtype(), torch.uint8)
            headers[name] = TensorHeader(tuple(stored.get_shape()), dtype)
    return headers


def _read_pickle(path: Path) -> dict[str, TensorHeader]:
    entries = torch.load(path, map_location="meta", weights_only=True)
    if isinstance(entries.get("state_dict"), dict):
        raise ValueError("its weights lie under 'state_dict'; save that part alone")
    # Training code stores other things beside the weights, such as a step count.
    return {
        name: TensorHeader(tuple(entry.shape), entry.dtype)
        for name, entry in entries.items()
        if isinstance(entry, torch.Tensor)
    }


def broken(model: str, path: str | Path, problem: object) -> InputError:
    """The error about a file of a model that cannot be read."""
    return InputError(
        f"model {model}: cannot read {path}: {problem}. Repair or re-download this checkpoint."
    )
