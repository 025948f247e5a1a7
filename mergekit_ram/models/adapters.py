"""Merges adapters into their bases, once for every content of both, in mergekit's cache.

The folder of a merged adapter has digests of what it was made from and of what it holds in its
name, and is moved into place when it is complete: it is there, or it is not.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import xxhash
from mergekit.common import ModelPath, ModelReference
from mergekit.options import MergeOptions
from peft.utils import load_peft_weights

from mergekit_ram.errors import InputError, reading
from mergekit_ram.models.checkpoints import open_checkpoint
from mergekit_ram.models.transformers_layout import build_without_memory, layout_of
from mergekit_ram.models.unreadable import ADAPTER_CONFIG
from mergekit_ram.text import say, some

LOG = logging.getLogger("mergekit_ram")

MODEL_FILES = frozenset({".json", ".safetensors", ".bin", ".pt", ".pth"})
"""Endings of the files of a model or an adapter that decide about its weights."""

DIGESTED = 256 * 2**20
"""Bytes up to which a file is told by its content; a base's shards by size and time."""

DIGEST_LENGTH = 16

READ_AT_ONCE = 16 * 2**20
"""Bytes."""

REMEDY = "Give the base that the adapter was trained on, or merge it yourself (merge_and_unload)."


@contextmanager
def adapter_cache(
    models: Iterable[ModelReference], beside: str | None, options: MergeOptions
) -> Iterator[MergeOptions]:
    """mergekit's options with a cache for merged adapters, removed at the end if none was given.

    Args:
        models: of a merge.
        beside: a path on the disk that has room for it; the system's own place by default.
        options: of mergekit's commands.
    """
    if options.lora_merge_cache or all(model.lora is None for model in models):
        yield options
        return
    above = Path(beside).absolute().parents if beside else ()
    where = next((p for p in above if os.access(p, os.W_OK | os.X_OK)), None)
    with tempfile.TemporaryDirectory(prefix=".mergekit-ram-adapters-", dir=where) as folder:
        tell_of_cache(folder)
        yield options.model_copy(update={"lora_merge_cache": folder})


def tell_of_cache(folder: str) -> None:
    """Say where adapters are merged if the user has named no place."""
    say(
        f"adapters are merged into their bases in {folder}, which is removed at the end; "
        "--lora-merge-cache FOLDER keeps them for other merges"
    )


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
    config = _mergeable_config(model, adapter)
    if not options.lora_merge_cache:
        raise InputError(
            f"model {model}: an adapter is merged into its base before, and there is no place for "
            "that. Give one with --lora-merge-cache FOLDER."
        )
    cache = Path(options.lora_merge_cache)
    with reading(model, "base or adapter", "Repair or re-download them."):
        lines = [str(options.lora_merge_dtype), str(model.override_architecture)]
        lines += [*_marks(Path(base)), *_marks(Path(adapter))]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGEST_LENGTH]
    name = f"{Path(base).name}_{digest}_"
    for place in cache.glob(f"{glob.escape(name)}*"):
        if place.name == name + _content(place):
            return str(place)
        LOG.warning("model %s: %s is damaged, and is made anew", model, place)
        shutil.rmtree(place, ignore_errors=True)
    with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
        cache.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=".merging-", dir=cache)
    with aside:
        update = {"model": ModelPath(path=base), "lora": ModelPath(path=adapter)}
        folders = model.model_copy(update=update)
        _check_applied(model, folders, config, options)
        _merge(model, folders, aside.name, options)
        (made,) = Path(aside.name).iterdir()
        place = cache / (name + _content(made))
        # Another process may have put the same there.
        if not place.is_dir():
            made.rename(place)
    return str(place)


def _content(folder: Path) -> str:
    """A digest of all that decides about the weights of a merged adapter."""
    digest = xxhash.xxh3_64()
    for path in sorted(folder.iterdir()):
        if path.suffix in MODEL_FILES and path.is_file():
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                for part in iter(functools.partial(file.read, READ_AT_ONCE), b""):
                    digest.update(part)
    return digest.hexdigest()


def _mergeable_config(model: ModelReference, adapter: str) -> peft.PeftConfig:
    """The configuration of an adapter that changes weights.

    Raises:
        InputError: there is no adapter, or of a kind that has nothing to merge.
    """
    if not (Path(adapter) / ADAPTER_CONFIG).is_file():
        is_model = (Path(adapter) / "config.json").is_file()
        hint = "it looks like a whole model, which is given without a base and a +"
        raise InputError(
            f"model {model}: the folder {adapter} holds no adapter: it has no {ADAPTER_CONFIG}; "
            f"{hint if is_model else 'after the + comes the folder of an adapter'}."
        )
    with reading(model, f"the adapter {adapter}", REMEDY):
        config: peft.PeftConfig = peft.PeftConfig.from_pretrained(adapter)
    kind = peft.PeftType(config.peft_type)
    if not hasattr(peft.PEFT_TYPE_TO_TUNER_MAPPING.get(kind), "merge_and_unload"):
        raise InputError(
            f"model {model}: the adapter {adapter} is of the `peft_type` {kind.value}, which "
            "changes no weights of its base, so that there is nothing to merge. Leave it out."
        )
    return config


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


def _check_applied(
    model: ModelReference, folders: ModelReference, config: peft.PeftConfig, options: MergeOptions
) -> None:
    """Check on a model without memory that every tensor of base and adapter finds its place.

    transformers makes up what the base's files do not have under its names. PEFT warns of tensors
    that an adapter's file lacks, and says nothing of those that it has besides.
    """
    assert folders.lora is not None
    what, trust = f"the adapter {model.lora}", options.trust_remote_code
    headers = open_checkpoint(folders.model.path, str(model)).headers
    layout = layout_of(folders.config(trust), trust_remote_code=trust)
    unknown = layout.missing(layout.places(headers).values()) if layout else set()
    if unknown:
        raise InputError(
            f"model {model}: the base {model.model} lacks {some(sorted(unknown))} under the names "
            "that transformers loads, which would make them up. Save it with save_pretrained."
        )
    config.inference_mode = False
    with reading(model, what, REMEDY), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = build_without_memory(folders.config(trust), trust)
        empty = peft.get_peft_model(base, config, low_cpu_mem_usage=True)
        renamed = getattr(base, "_checkpoint_conversion_mapping", {})
        stored = load_peft_weights(folders.lora.path, device="cpu", key_mapping=renamed)
        known = peft.get_peft_model_state_dict(empty).keys()
        weights = dict(empty.named_parameters())
        trained = {name for name, weight in weights.items() if weight.requires_grad}
        try:
            found: Any = peft.set_peft_model_state_dict(empty, stored, low_cpu_mem_usage=True)
            missing = sorted(trained & {*found.missing_keys}) if known - stored.keys() else []
            lost = found.unexpected_keys
        except Exception:  # PEFT packs what belongs to experts, and fails where there is no place
            missing, lost = [], sorted(stored.keys() - known - weights.keys())
            if not lost:
                raise
    if missing or lost:
        problem = f"it has no weights for {some(missing)}"
        if not missing:
            problem = f"these of its tensors belong to nothing in the base: {some(lost)}"
        raise InputError(f"model {model}: {what} does not fit: {problem}. {REMEDY}")


def _merge(
    model: ModelReference, folders: ModelReference, aside: str, options: MergeOptions
) -> None:
    with reading(model, f"the adapter {model.lora}", REMEDY):
        folders.merged(
            cache_dir=aside,
            trust_remote_code=options.trust_remote_code,
            lora_merge_dtype=options.lora_merge_dtype,
        )
