"""Merges adapters into their bases, once for every content of both, in mergekit's cache.

The folder of a merged adapter has a digest of what it was made from as its name, and is moved into
place when it is complete: it is there, or it is not.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from mergekit.common import ModelPath, ModelReference
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError, reading
from mergekit_ram.models.checkpoints import ADAPTER_CONFIG
from mergekit_ram.text import some

MISSING_KEYS = "missing adapter keys"
"""PEFT warns of this where an adapter has no weights for modules that it names."""

MODEL_FILES = frozenset({".json", ".safetensors", ".bin", ".pt", ".pth"})
"""Endings of the files of a model or an adapter that decide about its weights."""

DIGESTED = 256 * 2**20
"""Bytes up to which a file is told by its content; a base's shards by size and time."""

DIGEST_LENGTH = 16

REMEDY = "Give the base that the adapter was trained on, or merge it yourself (merge_and_unload)."


def merged_adapter(model: ModelReference, base: str, adapter: str, options: MergeOptions) -> str:
    """The folder in the cache that holds a base with its adapter merged into it, by mergekit.

    Args:
        model: base and adapter, as the configuration names them.
        base: folder of the base.
        adapter: folder of the adapter.
        options: of mergekit's commands.

    Raises:
        InputError: there is no cache, or the adapter does not fit its base.
    """
    if not options.lora_merge_cache:
        raise InputError(
            f"model {model}: an adapter is merged into its base before, and there is no place for "
            "that. Give one with --lora-merge-cache FOLDER."
        )
    if not (Path(adapter) / ADAPTER_CONFIG).is_file():
        is_model = (Path(adapter) / "config.json").is_file()
        hint = "it looks like a whole model, which is given without a base and a +"
        raise InputError(
            f"model {model}: the folder {adapter} holds no adapter: it has no {ADAPTER_CONFIG}; "
            f"{hint if is_model else 'after the + comes the folder of an adapter'}."
        )
    cache = Path(options.lora_merge_cache)
    with reading(model, "base or adapter", "Repair or re-download them."):
        lines = [str(options.lora_merge_dtype), str(model.override_architecture)]
        lines += [*_marks(Path(base)), *_marks(Path(adapter))]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGEST_LENGTH]
    place = cache / f"{Path(base).name}_{digest}"
    if place.is_dir():
        return str(place)
    with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
        cache.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=".merging-", dir=cache)
    with aside:
        update = {"model": ModelPath(path=base), "lora": ModelPath(path=adapter)}
        _merge(model, model.model_copy(update=update), aside.name, options)
        (made,) = Path(aside.name).iterdir()
        # Another process may have put the same there.
        if not place.is_dir():
            made.rename(place)
    return str(place)


def _marks(folder: Path) -> Iterator[str]:
    """A line on each file of a model: a digest of its content, or size and time if it is large."""
    yield str(folder.resolve())
    for file in sorted(folder.iterdir()):
        if file.suffix not in MODEL_FILES or not file.is_file():
            continue
        status = file.stat()
        if status.st_size > DIGESTED:
            yield f"{file.name} {status.st_size} {status.st_mtime_ns}"
        else:
            yield f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def _merge(
    model: ModelReference, folders: ModelReference, aside: str, options: MergeOptions
) -> None:
    what = f"the adapter {model.lora}"
    with warnings.catch_warnings(record=True) as caught, reading(model, what, REMEDY):
        warnings.simplefilter("always")
        folders.merged(
            cache_dir=aside,
            trust_remote_code=options.trust_remote_code,
            lora_merge_dtype=options.lora_merge_dtype,
        )
    for warning in caught:
        if MISSING_KEYS in str(warning.message):
            keys = str(warning.message).split(":", 1)[-1].strip(" .")
            raise InputError(
                f"model {model}: {what} does not fit: it has no weights for "
                f"{some(keys.strip('[]').split(', '))}. {REMEDY}"
            )
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
