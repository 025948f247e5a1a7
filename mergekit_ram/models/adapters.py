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

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from mergekit.common import ModelPath, ModelReference
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError
from mergekit_ram.merges.boundary import reading
from mergekit_ram.merges.notes import some
from mergekit_ram.models.checkpoints import ADAPTER_CONFIG

MISSING_KEYS = "missing adapter keys"
"""PEFT warns of this where an adapter has no weights for modules that it names."""

MODEL_FILES = frozenset({".json", ".safetensors", ".bin", ".pt", ".pth"})
"""Endings of the files of a model or an adapter that decide about its weights."""

DIGESTED = 256 * 2**20
"""Bytes up to which a file is told by its content; a base's shards by size and time."""

DIGEST_LENGTH = 16

REMEDY = "Give the base that the adapter was trained on, or merge it yourself (merge_and_unload)."


def merged_adapter(model: ModelReference, options: MergeOptions) -> str:
    """The folder in the cache that holds a base with its adapter merged into it, by mergekit.

    Raises:
        InputError: there is no cache, no such dtype, or the adapter does not fit its base.
    """
    if not options.lora_merge_cache:
        raise InputError(
            f"model {model}: an adapter is merged into its base before, and there is no place for "
            "that. Give one with --lora-merge-cache FOLDER."
        )
    _check_adapter(model)
    cache = Path(options.lora_merge_cache)
    name = _digest(model, options)
    if name is not None and (cache / name).is_dir():
        return str(cache / name)
    with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
        cache.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=".merging-", dir=cache)
    with aside:
        _merge(model, aside.name, options)
        (made,) = Path(aside.name).iterdir()
        # The files of a model of the hub are known only now.
        place = cache / (name or _digest(model, options) or made.name)
        with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
            # Another process may have put the same there.
            if not place.is_dir():
                made.rename(place)
    return str(place)


def _check_adapter(model: ModelReference) -> None:
    assert model.lora is not None
    folder = Path(model.lora.path)
    if folder.is_dir() and not (folder / ADAPTER_CONFIG).is_file():
        is_model = (folder / "config.json").is_file()
        raise InputError(
            f"model {model}: the folder {folder} holds no adapter: it has no {ADAPTER_CONFIG}"
            + ("; it looks like a whole model, which is given without a base and a +." * is_model)
            + (". After the + comes the folder of an adapter." * (not is_model))
        )


def _digest(model: ModelReference, options: MergeOptions) -> str | None:
    """A name for the merge of these files; None where some are not on this machine."""
    parts = {"config.json": model.model, ADAPTER_CONFIG: model.lora}
    folders = [_folder(part, file) for file, part in parts.items() if part is not None]
    lines = [str(options.lora_merge_dtype), str(model.override_architecture)]
    with reading(model, "base or adapter", "Repair or re-download them."):
        for folder in folders:
            if folder is None:
                return None
            lines += [str(folder), *_marks(folder)]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"{Path(model.model.path).name}_{digest[:DIGEST_LENGTH]}"


def _folder(part: ModelPath, configuration: str) -> Path | None:
    if Path(part.path).is_dir():
        return Path(part.path).resolve()
    try:
        found = try_to_load_from_cache(part.path, configuration, revision=part.revision)
    except HFValidationError:  # it is no name of the hub, which is said where it is opened
        return None
    # The file may be a link out of its folder, which is named by the commit.
    return Path(found).parent.resolve() if isinstance(found, str) else None


def _marks(folder: Path) -> Iterator[str]:
    """A line on each file of a model: a digest of its content, or size and time if it is large."""
    for file in sorted(folder.iterdir()):
        if file.suffix not in MODEL_FILES or not file.is_file():
            continue
        status = file.stat()
        if status.st_size > DIGESTED:
            yield f"{file.name} {status.st_size} {status.st_mtime_ns}"
        else:
            yield f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def _merge(model: ModelReference, aside: str, options: MergeOptions) -> None:
    assert model.lora is not None
    what = f"the adapter {model.lora.path}"
    with warnings.catch_warnings(record=True) as caught, reading(model, what, REMEDY):
        warnings.simplefilter("always")
        model.merged(
            cache_dir=aside,
            trust_remote_code=options.trust_remote_code,
            lora_merge_dtype=options.lora_merge_dtype,
        )
    for warning in caught:
        if MISSING_KEYS in str(warning.message):
            keys = str(warning.message).split(":", 1)[-1].strip(" .")
            raise InputError(
                f"model {model}: the adapter {model.lora.path} does not fit: it has no weights "
                f"for {some(keys.strip('[]').split(', '))}. {REMEDY}"
            )
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
