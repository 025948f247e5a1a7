"""Which files of a folder are a model's weights, and what they hold: as transformers reads them.

mergekit takes an index for the truth. transformers prefers a single file to an index, and from
the files that an index lists it takes what they hold. A merge has to be of what is loaded later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mergekit.io import ShardedTensorIndex
from mergekit.io.lazy_tensor_loader import ShardInfo
from safetensors import SafetensorError

from mergekit_ram.errors import InputError, one_line
from mergekit_ram.merges.headers import TensorHeader, broken, read_shard

INDEX_SUFFIX = ".index.json"

DESCRIPTIONS = (
    "model.safetensors",
    "model.safetensors" + INDEX_SUFFIX,
    "pytorch_model.bin",
    "pytorch_model.bin" + INDEX_SUFFIX,
)
"""What may describe a model's weights, that first which transformers looks for first."""

EXPLICIT_KEY = "transformers_weights"
"""Key of ``config.json`` by which transformers is told another file."""

ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """A model's weights on disk.

    Attributes:
        index: of the tensors that are there, by their stored names.
        headers: the same tensors' shapes and dtypes.
        promised: what is wrong with a tensor that an index lists and no file holds, by name.
        description: the file that says where the tensors are.
        unread: other files that describe weights, which transformers does not read.
    """

    index: ShardedTensorIndex
    headers: Mapping[str, TensorHeader]
    promised: Mapping[str, InputError] = field(default_factory=dict)
    description: str = ""
    unread: tuple[str, ...] = ()


def open_checkpoint(folder: str, model: str) -> Checkpoint:
    """Look at a model's files as transformers would, reading headers only.

    Args:
        folder: of a Hugging Face model.
        model: what to call it in errors.

    Raises:
        InputError: naming model and file: no configuration, no weights, a broken file, or
            weights that are quantised.
    """
    root = Path(folder)
    settings = _read_config(root, model)
    found = [name for name in DESCRIPTIONS if (root / name).is_file()]
    explicit = settings.get(EXPLICIT_KEY)
    chosen = str(explicit) if explicit else next(iter(found), None)
    if chosen is None:
        raise broken(model, folder, f"Unable to find model files: {_what_there_is(root)}")
    unread = tuple(name for name in found if name != chosen)
    if chosen.endswith(INDEX_SUFFIX):
        return _open_sharded(root, chosen, model, unread)
    headers = read_shard(root / chosen, chosen.endswith(".safetensors"), model)
    index = _index(root, chosen, dict.fromkeys(headers, chosen))
    return Checkpoint(index, headers, {}, chosen, unread)


def _open_sharded(root: Path, chosen: str, model: str, unread: tuple[str, ...]) -> Checkpoint:
    path = root / chosen
    weight_map = _read_table(path, model).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise broken(model, path, "it holds no weight_map")
    weight_map = {str(name): str(file) for name, file in weight_map.items()}
    headers: dict[str, TensorHeader] = {}
    tensor_paths: dict[str, str] = {}
    promised: dict[str, InputError] = {}
    is_safetensors = chosen.startswith("model.safetensors") or ".safetensors" in chosen
    for file in sorted(set(weight_map.values())):
        wanted = [name for name, place in weight_map.items() if place == file]
        try:
            stored = read_shard(root / file, is_safetensors, model)
        except InputError as error:
            if (root / file).is_file():
                raise
            # Somebody may have taken out a part that this model does not need.
            promised |= dict.fromkeys(wanted, error)
            continue
        headers |= stored
        tensor_paths |= dict.fromkeys(stored, file)
        for name in wanted:
            if name not in stored:
                promised[name] = broken(model, root / file, f"its index promises tensor {name}")
    if not headers:
        raise next(iter(promised.values()))
    promised = {name: error for name, error in promised.items() if name not in headers}
    return Checkpoint(_index(root, chosen, tensor_paths), headers, promised, chosen, unread)


def _index(root: Path, chosen: str, tensor_paths: dict[str, str]) -> ShardedTensorIndex:
    shards = [
        ShardInfo(file, [name for name, place in tensor_paths.items() if place == file])
        for file in sorted(set(tensor_paths.values()))
    ]
    return ShardedTensorIndex(str(root), ".safetensors" in chosen, tensor_paths, shards)


def _what_there_is(root: Path) -> str:
    """Words on a folder without weights that transformers would read."""
    others = sorted(
        file.name
        for pattern in ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth")
        for file in root.glob(pattern)
    )
    wanted = "model.safetensors or pytorch_model.bin, whole or with an index"
    if not others:
        return f"it has no {wanted}"
    return f"it has no {wanted}, only {_some(others)}"


def _some(names: Iterable[str], limit: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _read_config(root: Path, model: str) -> dict[str, Any]:
    path = root / "config.json"
    if not path.is_file():
        if (root / ADAPTER_CONFIG).is_file():
            raise _is_adapter(root, model)
        raise broken(model, path, "the file is missing")
    settings = _read_table(path, model)
    quantisation = settings.get("quantization_config")
    if quantisation:
        is_table = isinstance(quantisation, dict)
        method = quantisation.get("quant_method", "unknown") if is_table else quantisation
        raise InputError(
            f"model {model}: its weights are quantised (quantization_config in {path}: "
            f"{method}) and cannot be subtracted; merge its bfloat16, float16 or float32 original"
        )
    return settings


def _is_adapter(root: Path, model: str) -> InputError:
    try:
        base = json.loads((root / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        base = str(base["base_model_name_or_path"])
    except (OSError, ValueError, LookupError, TypeError):
        base = "BASE"
    return InputError(
        f"model {model}: the folder {root} holds an adapter ({ADAPTER_CONFIG}) and no whole "
        f"model. Write base and adapter together: `model: {base}+{model}`, with the base that it "
        "was trained on, and give --lora-merge-cache."
    )


def _read_table(path: Path, model: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, SafetensorError) as error:
        raise broken(model, path, one_line(error)) from None
    if not isinstance(found, dict):
        raise broken(model, path, "it holds no settings")
    return found
