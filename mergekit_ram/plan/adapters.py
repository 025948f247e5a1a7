"""Adapters merged into their bases: all of it, or nothing that a later merge would take for it."""

from __future__ import annotations

import binascii
import logging
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path

from mergekit.common import ModelReference
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError
from mergekit_ram.merges.boundary import reading
from mergekit_ram.merges.checkpoints import ADAPTER_CONFIG, open_checkpoint
from mergekit_ram.merges.notes import some

LOG = logging.getLogger("mergekit_ram")

MISSING_KEYS = "missing adapter keys"
"""What PEFT warns of where an adapter has no weights for modules that it names."""

MODEL_FILES = frozenset({".json", ".safetensors", ".bin", ".pt", ".pth"})
"""What files of a model or an adapter end in that decide about its weights."""

REMEDY = "Give the base that the adapter was trained on, or merge it yourself (merge_and_unload)."


def merged_adapter(model: ModelReference, options: MergeOptions) -> str:
    """The folder in mergekit's cache that holds a base with its adapter merged into it.

    mergekit makes it; here it is made aside and moved into place when it is whole.

    Raises:
        InputError: there is no cache, or the adapter does not fit its base.
    """
    assert model.lora is not None
    if not options.lora_merge_cache:
        raise InputError(
            f"model {model}: an adapter is merged into its base before, and there is no place for "
            "that. Give one with --lora-merge-cache FOLDER."
        )
    cache = Path(options.lora_merge_cache)
    _check_adapter(model)
    with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
        cache.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".merging-", dir=cache))
    try:
        place = cache / _usual_name(model)
        if _is_whole(place, model):
            return str(place)
        _merge(model, aside, options)
        (made,) = aside.iterdir()
        place = cache / made.name
        if place.exists():
            LOG.warning("cache %s: replaced, not whole or older than base or adapter", place)
            shutil.rmtree(place)
        made.rename(place)
        return str(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _usual_name(model: ModelReference) -> str:
    """As mergekit names it, so that what it has merged before is found."""
    parts = [part for part in (model.model, model.lora) if part is not None]
    return "_".join(
        f"{os.path.basename(part.path)}_{binascii.crc32(str(part).encode())}" for part in parts
    )


def _merge(model: ModelReference, aside: Path, options: MergeOptions) -> None:
    assert model.lora is not None
    what = f"the adapter {model.lora.path}"
    with warnings.catch_warnings(record=True) as caught, reading(model, what, REMEDY):
        warnings.simplefilter("always")
        model.merged(
            cache_dir=str(aside),
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


def _is_whole(folder: Path, model: ModelReference) -> bool:
    """Whether what is in the cache is a model, and not older than base and adapter."""
    if not folder.exists():
        return False
    try:
        if open_checkpoint(str(folder), str(model)).promised:
            return False
    except InputError as error:
        LOG.info("cache %s: %s", folder, error)
        return False
    folders = [Path(part.path) for part in (model.model, model.lora) if part is not None]
    files = [file for given in folders if given.is_dir() for file in given.iterdir()]
    times = [f.stat().st_mtime for f in files if f.suffix in MODEL_FILES and f.is_file()]
    made = (folder / "config.json").stat().st_mtime
    # A time that is yet to come says nothing, and would have the adapter merged for ever.
    return all(changed <= made for changed in times if changed <= time.time())


def _check_adapter(model: ModelReference) -> None:
    assert model.lora is not None
    folder = Path(model.lora.path)
    if not folder.is_dir():
        return
    if not (folder / ADAPTER_CONFIG).is_file():
        raise InputError(
            f"model {model}: the folder {folder} holds no adapter: it has no {ADAPTER_CONFIG}"
            f"{_whole_model(folder)}."
        )


def _whole_model(folder: Path) -> str:
    if (folder / "config.json").is_file():
        return "; it looks like a whole model, which is given without a base and a +"
    return ". After the + comes the folder of an adapter"
