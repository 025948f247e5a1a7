"""What a checkpoint says about its tensors without reading them: names, shapes, dtypes.

Broken files are found here, before anybody computes for hours.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mergekit.io import ShardedTensorIndex
from safetensors import SafetensorError, safe_open

from mergekit_ram.errors import InputError

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


def find_index(folder: str, model: str) -> ShardedTensorIndex:
    """The index of a local checkpoint's tensors.

    Args:
        folder: of a Hugging Face model.
        model: what to call it in errors.

    Raises:
        InputError: there are no weights, or the index cannot be read.
    """
    try:
        return ShardedTensorIndex.from_disk(folder)
    except (RuntimeError, KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise _broken(model, folder, error) from None


def read_headers(index: ShardedTensorIndex, model: str) -> dict[str, TensorHeader]:
    """All tensors that a checkpoint holds, by name.

    Raises:
        InputError: a file is missing, empty, truncated, or lacks what the index promises.
    """
    headers: dict[str, TensorHeader] = {}
    for shard in index.shards:
        path = shard_path(index, shard.filename)
        found = read_shard(path, index.is_safetensors, model)
        missing = [name for name in shard.contained_keys if name not in found]
        # Only an index file can promise what the shard lacks; other entries are no tensors.
        if missing and len(index.shards) > 1:
            raise _broken(model, path, f"its index promises tensor {missing[0]}")
        headers.update(found)
    return headers


def check_checkpoint(folder: str, model: str) -> None:
    """Check every file of a local model, reading headers only.

    Raises:
        InputError: naming model and file, or the quantisation of its weights.
    """
    config = Path(folder) / "config.json"
    if not config.is_file():
        raise _broken(model, config, "the file is missing")
    _refuse_quantised(config, model)
    read_headers(find_index(folder, model), model)


def _refuse_quantised(config: Path, model: str) -> None:
    try:
        settings: Any = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _broken(model, config, error) from None
    if not isinstance(settings, dict):
        raise _broken(model, config, "it holds no settings")
    quantisation = settings.get("quantization_config")
    if quantisation:
        is_table = isinstance(quantisation, dict)
        method = quantisation.get("quant_method", "unknown") if is_table else quantisation
        raise InputError(
            f"model {model}: its weights are quantised (quantization_config in {config}: "
            f"{method}) and cannot be subtracted; merge its bfloat16, float16 or float32 original"
        )


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
        raise _broken(model, path, "the file is missing")
    if path.stat().st_size == 0:
        raise _broken(model, path, "the file is empty")
    try:
        status = path.stat()
        state = (status.st_size, status.st_mtime_ns, status.st_ino)
        return _read_unchanged(path, is_safetensors, state)
    except (SafetensorError, RuntimeError, EOFError, OSError, LookupError, ValueError) as error:
        raise _broken(model, path, error) from None


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
    entries = entries.get("state_dict", entries)
    # Training code stores other things beside the weights, such as a step count.
    return {
        name: TensorHeader(tuple(entry.shape), entry.dtype)
        for name, entry in entries.items()
        if isinstance(entry, torch.Tensor)
    }


def _broken(model: str, path: str | Path, problem: object) -> InputError:
    return InputError(
        f"model {model}: cannot read {path}: {problem}. Repair or re-download this checkpoint."
    )
