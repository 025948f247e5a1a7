"""From what a merged adapter in the cache was made: kept beside it, and compared before it is used.

mergekit names the entry by what the recipe says. The same words mean other files in another
folder, and the same files at another time are other weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from mergekit.common import ModelPath, ModelReference, dtype_from_name
from mergekit.options import MergeOptions

from mergekit_ram.merges.checkpoints import ADAPTER_CONFIG

ORIGIN_NAME = "mergekit_ram_adapter.json"
"""The file in an entry of the cache that says from what it was made."""

MODEL_FILES = frozenset({".json", ".safetensors", ".bin", ".pt", ".pth"})
"""What files of a model or an adapter end in that decide about its weights."""

DIGESTED = 256 * 2**20
"""Bytes up to which a file is told by its content too: a base's shards would take minutes."""

PIECE = 2**20
"""Bytes of a file that are in memory at once."""

Origin = dict[str, Any]


def origin_of(model: ModelReference, options: MergeOptions) -> Origin:
    """What decides about a base with its adapter merged into it.

    Args:
        model: both.
        options: of mergekit's commands.

    Returns:
        ``settings``, which do not change with time: the places of both, and the dtype; and
        ``files``, which may: size, time in ns and SHA-256 of every file that counts.

    Raises:
        OSError: a file cannot be read.
    """
    assert model.lora is not None
    base, adapter = _place(model.model, "config.json"), _place(model.lora, ADAPTER_CONFIG)
    dtype = dtype_from_name(options.lora_merge_dtype)
    return {
        "settings": {
            "base": str(base),
            "adapter": str(adapter),
            "dtype": None if dtype is None else str(dtype),
            "architecture": model.override_architecture,
        },
        "files": {"base": _files(base), "adapter": _files(adapter)},
    }


def is_local(model: ModelReference) -> bool:
    """Whether base and adapter are folders, so that merging downloads nothing."""
    return all(part is None or Path(part.path).is_dir() for part in (model.model, model.lora))


def write_origin(folder: Path, origin: Origin) -> None:
    """Say in an entry of the cache from what it was made."""
    (folder / ORIGIN_NAME).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")


def read_origin(folder: Path) -> Origin | None:
    """What an entry of the cache says; None where it says nothing that can be understood."""
    try:
        found = json.loads((folder / ORIGIN_NAME).read_text(encoding="utf-8"))
        is_one = isinstance(found["settings"], dict) and all(
            isinstance(mark["size"], int) and isinstance(mark["time"], int)
            for part in ("base", "adapter")
            for mark in found["files"][part].values()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return found if is_one else None


def is_same(kept: Origin, origin: Origin, now: float) -> bool:
    """Whether an entry would be the same if it were made again.

    Args:
        kept: from what it was made.
        origin: from what it would be made.
        now: seconds since the epoch.
    """
    return kept["settings"] == origin["settings"] and all(
        kept["files"][part].keys() == origin["files"][part].keys()
        and all(
            _is_same_file(kept["files"][part][name], mark, now)
            for name, mark in origin["files"][part].items()
        )
        for part in ("base", "adapter")
    )


def _is_same_file(kept: Mapping[str, Any], mark: Mapping[str, Any], now: float) -> bool:
    if (kept["size"], kept.get("sha256")) != (mark["size"], mark["sha256"]):
        return False
    # A time that is yet to come says nothing, where the content does.
    is_to_come = mark["sha256"] is not None and mark["time"] > now * 1e9
    return bool(kept["time"] == mark["time"] or is_to_come)


def _place(part: ModelPath, configuration: str) -> Path | str:
    """The folder of a model; the name of one of the hub that is not in its cache."""
    if Path(part.path).is_dir():
        return Path(part.path).resolve()
    try:
        found = try_to_load_from_cache(part.path, configuration, revision=part.revision)
    except HFValidationError:  # it is no name of the hub, which is said where it is opened
        found = None
    # The file may be a link out of its folder, which is named by the commit.
    return Path(found).parent.resolve() if isinstance(found, str) else str(part)


def _files(place: Path | str) -> dict[str, Any]:
    if isinstance(place, str):
        return {}
    return {
        file.name: _mark(file)
        for file in sorted(place.iterdir())
        if file.suffix in MODEL_FILES and file.is_file()
    }


def _mark(file: Path) -> dict[str, Any]:
    found = file.stat()
    digest = _digest(file) if found.st_size <= DIGESTED else None
    return {"size": found.st_size, "time": found.st_mtime_ns, "sha256": digest}


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(PIECE):
            found.update(piece)
    return found.hexdigest()
