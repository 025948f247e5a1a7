"""Finds the files of a model's weights, as transformers does, and reads the headers in them.

mergekit trusts an index. transformers prefers a single file to an index, and takes from the files
that an index lists whatever they hold. A merge has to be of the weights that are loaded later.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mergekit.io import ShardedTensorIndex
from mergekit.io.lazy_tensor_loader import ShardInfo
from safetensors import safe_open
from transformers.modeling_utils import str_to_torch_dtype

from mergekit_ram.errors import InputError, one_line
from mergekit_ram.models.unreadable import (
    NestedWeightsError,
    broken,
    broken_file,
    no_model,
    other_weights,
)
from mergekit_ram.tensors import MERGEABLE_DTYPES
from mergekit_ram.text import some

INDEX_SUFFIX = ".index.json"

DESCRIPTIONS = (
    "model.safetensors",
    "model.safetensors" + INDEX_SUFFIX,
    "pytorch_model.bin",
    "pytorch_model.bin" + INDEX_SUFFIX,
)
"""Files that may describe a model's weights, in the order in which transformers looks for them."""

EXPLICIT_KEY = "transformers_weights"
"""Key of ``config.json`` that tells transformers another file."""

KEPT_HEADERS = 4096
"""Files whose headers are kept, for every step of a plan that asks for them again."""

MISSING = "the file is missing"


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

    @property
    def is_packed(self) -> bool:
        """Whether it may hold numbers of eight bits or fewer, which say nothing without scales."""
        return self.dtype not in (*MERGEABLE_DTYPES, torch.int64, torch.bool)

    def as_meta(self) -> torch.Tensor:
        """A tensor without data, for code that computes shapes."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class Source:
    """Where a checkpoint holds a tensor of a plan.

    Attributes:
        name: of the stored tensor.
        matrix: the number of the matrix in it, for one of packed experts; None for all of it.
        start: the first row of that matrix.
        stop: the row after the last one.
    """

    name: str
    matrix: int | None = None
    start: int = 0
    stop: int = 0

    def of(self, stored: torch.Tensor) -> torch.Tensor:
        """The tensor of the plan, which borrows the stored one's memory."""
        return stored if self.matrix is None else stored[self.matrix, self.start : self.stop]

    def header(self, stored: TensorHeader) -> TensorHeader:
        """The header of the tensor of the plan."""
        if self.matrix is None:
            return stored
        tensor = self.of(stored.as_meta())
        return TensorHeader(tuple(tensor.shape), tensor.dtype)


@dataclass(frozen=True)
class Checkpoint:
    """A model's weights on disk.

    Attributes:
        index: of the tensors that are there, by their stored names.
        headers: the same tensors' shapes and dtypes.
        promised: the error about every tensor that an index lists and no file holds, by name.
        description: the file that says where the tensors are.
        unread: other files that describe weights, which transformers does not read.
    """

    index: ShardedTensorIndex
    headers: Mapping[str, TensorHeader]
    promised: Mapping[str, InputError]
    description: str
    unread: tuple[str, ...]
    quantisation: str | None
    """Its method, where the weights are quantised indeed, whatever ``config.json`` says."""

    @property
    def packed(self) -> dict[str, TensorHeader]:
        """The tensors that may be packed weights, by name."""
        return {name: header for name, header in self.headers.items() if header.is_packed}


def open_checkpoint(folder: str, model: str) -> Checkpoint:
    """Look at a model's files as transformers would, reading headers only.

    Args:
        folder: of a Hugging Face model.
        model: its name in errors.

    Raises:
        InputError: naming model and file: no configuration, no weights, or a broken file.
    """
    root = Path(folder)
    settings = _read_config(root, model)
    explicit = settings.get(EXPLICIT_KEY)
    found = [name for name in DESCRIPTIONS if (root / name).is_file()]
    if not explicit and not found:
        problem = f"Unable to find model files: {other_weights(root)}"
        raise no_model(model, root, root, problem)
    chosen = str(explicit) if explicit else found[0]
    weight_map = _read_index(root / chosen, model) if chosen.endswith(INDEX_SUFFIX) else {}
    is_safetensors = ".safetensors" in chosen
    headers: dict[str, TensorHeader] = {}
    shards: list[ShardInfo] = []
    for file in sorted(set(weight_map.values())) or [chosen]:
        # Somebody may have taken out a part that this model does not need.
        if weight_map and not (root / file).is_file():
            continue
        stored = read_shard(root / file, is_safetensors, model)
        headers |= stored
        shards.append(ShardInfo(file, [*stored]))
    promised = {
        name: broken(
            model,
            root / file,
            f"its index promises tensor {name}" if (root / file).is_file() else MISSING,
        )
        for name, file in weight_map.items()
        if name not in headers
    }
    if not headers and promised:
        raise next(iter(promised.values()))
    empty = [name for name, header in headers.items() if not header.numel]
    if 2 * len(empty) > len(headers):
        problem = f"most tensors in it are empty ({some(empty)}), as DeepSpeed's ZeRO-3 leaves them"
        raise no_model(model, root, root / chosen, problem)
    paths = {name: shard.filename for shard in shards for name in shard.contained_keys}
    index = ShardedTensorIndex(str(root), is_safetensors, paths, shards)
    unread = tuple(name for name in found if name != chosen)
    is_packed = any(header.is_packed for header in headers.values())
    told = settings.get("quantization_config") if is_packed else None
    method = told.get("quant_method", "unknown") if isinstance(told, dict) else told
    return Checkpoint(index, headers, promised, chosen, unread, method)


def _read_index(path: Path, model: str) -> dict[str, str]:
    weight_map = _read_table(path, model).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise broken(model, path, "it holds no weight_map")
    return {str(name): str(file) for name, file in weight_map.items()}


def _read_config(root: Path, model: str) -> dict[str, Any]:
    path = root / "config.json"
    if not path.is_file():
        raise no_model(model, root, path, MISSING)
    return _read_table(path, model)


def _read_table(path: Path, model: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise broken(model, path, one_line(error)) from None
    if not isinstance(found, dict):
        raise broken(model, path, "it holds no settings")
    return found


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
        raise broken(model, path, MISSING)
    status = path.stat()
    if status.st_size == 0:
        raise broken(model, path, "the file is empty")
    try:
        state = (status.st_size, status.st_mtime_ns, status.st_ino)
        return _read_unchanged(path, is_safetensors, state)
    except Exception as error:  # readers of files fail in many ways
        raise broken_file(model, path, error) from error


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
            # Packed dtypes that torch lacks count as bytes.
            dtype = str_to_torch_dtype.get(stored.get_dtype(), torch.uint8)
            headers[name] = TensorHeader(tuple(stored.get_shape()), dtype)
    return headers


def _read_pickle(path: Path) -> dict[str, TensorHeader]:
    entries = torch.load(path, map_location="meta", weights_only=True)
    # Training code stores other things beside the weights, such as a step count.
    tensors = {
        name: TensorHeader(tuple(entry.shape), entry.dtype)
        for name, entry in entries.items()
        if isinstance(entry, torch.Tensor)
    }
    below = [name for name, entry in entries.items() if isinstance(entry, Mapping) and entry]
    if below and not tensors:
        raise NestedWeightsError(f"its weights lie under {below[0]!r}")
    return tensors
