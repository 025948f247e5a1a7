"""Adapters merged into their bases: all of it, or nothing that a later merge would take for it."""

from __future__ import annotations

import binascii
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

from mergekit.common import ModelReference
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError
from mergekit_ram.merges.boundary import reading
from mergekit_ram.merges.checkpoints import ADAPTER_CONFIG, open_checkpoint
from mergekit_ram.merges.notes import some
from mergekit_ram.plan.origin import Origin, is_local, is_same, origin_of, read_origin, write_origin
from mergekit_ram.plan.recipe import check_dtype

LOG = logging.getLogger("mergekit_ram")

MISSING_KEYS = "missing adapter keys"
"""What PEFT warns of where an adapter has no weights for modules that it names."""

WHY_REPLACED = (
    "not whole, or not from base and adapter as they are now, or nothing says from what it was made"
)

ATTEMPTS = 10
"""To move an entry into a place that other processes fill at the same time."""

REMEDY = "Give the base that the adapter was trained on, or merge it yourself (merge_and_unload)."


def merged_adapter(model: ModelReference, options: MergeOptions) -> str:
    """The folder in mergekit's cache that holds a base with its adapter merged into it.

    mergekit makes it; here it is made aside and moved into place when it is whole. One that is
    there is used where it was made from these very files, in this dtype.

    Raises:
        InputError: there is no cache, no such dtype, or the adapter does not fit its base.
    """
    assert model.lora is not None
    if not options.lora_merge_cache:
        raise InputError(
            f"model {model}: an adapter is merged into its base before, and there is no place for "
            "that. Give one with --lora-merge-cache FOLDER."
        )
    check_dtype("--lora-merge-dtype ", options.lora_merge_dtype)
    cache = Path(options.lora_merge_cache)
    _check_adapter(model)
    with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
        cache.mkdir(parents=True, exist_ok=True)
    origin = _origin(model, options)
    place = _place(cache, model, origin)
    if _is_whole(place, model, origin):
        return str(place)
    with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
        aside = Path(tempfile.mkdtemp(prefix=".merging-", dir=cache))
    try:
        _merge(model, aside, options)
        (made,) = aside.iterdir()
        # What is downloaded only now has no other files to be told by.
        origin = origin if is_local(model) else _origin(model, options)
        write_origin(made, origin)
        with reading(model, f"the cache {cache}", "Give another --lora-merge-cache."):
            return str(_moved(made, cache, model, origin))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _origin(model: ModelReference, options: MergeOptions) -> Origin:
    with reading(model, "base or adapter", "Repair or re-download them."):
        return origin_of(model, options)


def _place(cache: Path, model: ModelReference, origin: Origin) -> Path:
    """Where an entry is, or is to be.

    It has the name that mergekit gives it, so that mergekit finds it. Where that is taken by what
    another recipe means by the same words, it has one of its own, and neither removes the other's.
    """
    usual = cache / _usual_name(model)
    kept = read_origin(usual)
    if kept is None or kept["settings"] == origin["settings"]:
        return usual
    settings = json.dumps(origin["settings"], sort_keys=True).encode()
    return usual.with_name(f"{usual.name}_{hashlib.sha256(settings).hexdigest()[:16]}")


def _moved(made: Path, cache: Path, model: ModelReference, origin: Origin) -> Path:
    """Put an entry into its place, unless another process has put the same one there."""
    for _ in range(ATTEMPTS):
        place = _place(cache, model, origin)
        if _is_whole(place, model, origin):
            return place
        if place.exists():
            LOG.warning("cache %s: replaced, %s", place, WHY_REPLACED)
            # Away at once, so that nobody meets half of it; what is aside is removed at the end.
            with suppress(FileNotFoundError):
                place.rename(Path(tempfile.mkdtemp(dir=made.parent)) / place.name)
        with suppress(OSError):
            made.rename(place)
            return place
    return made.rename(place)


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


def _is_whole(folder: Path, model: ModelReference, origin: Origin) -> bool:
    """Whether what is in the cache is a model that was made from these files."""
    kept = read_origin(folder)
    if kept is None or not is_same(kept, origin, time.time()):
        return False
    try:
        return not open_checkpoint(str(folder), str(model)).promised
    except InputError as error:
        LOG.info("cache %s: %s", folder, error)
        return False


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
