"""From a model's name in a configuration to its files: folders, the hub's cache, adapters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from mergekit.common import ModelReference
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError, reading
from mergekit_ram.merges.checkpoints import Checkpoint, open_checkpoint
from mergekit_ram.plan.adapters import merged_adapter
from mergekit_ram.plan.references import looks_local

LOG = logging.getLogger("mergekit_ram")

HUB_REMEDY = (
    "A local folder is written as ./folder, a model of the hub as owner/name; without a network "
    "give the folder of a download."
)


def open_all(
    models: Sequence[ModelReference], options: MergeOptions
) -> tuple[dict[ModelReference, Checkpoint], dict[ModelReference, Any]]:
    """The weights and the configurations of all models; those of the hub last.

    Raises:
        InputError: naming model and file, for whatever stands in the way.
    """
    local = [model for model in models if _is_local(model)]
    checkpoints = {model: open_model(model, options) for model in local}
    configs = {model: read_config(model, options, models) for model in models}
    checkpoints |= {model: open_model(model, options) for model in models if model not in local}
    return {model: checkpoints[model] for model in models}, configs


def _is_local(model: ModelReference) -> bool:
    return model.lora is None and Path(model.model.path).is_dir()


def read_config(
    model: ModelReference, options: MergeOptions, models: Sequence[ModelReference]
) -> Any:
    """A model's configuration, by transformers.

    Args:
        model: whose it is.
        options: of mergekit's commands.
        models: all that are merged, for an error about a name that may mean a folder.

    Raises:
        InputError: it cannot be read, or names no architecture.
    """
    path = model.model.path
    file = Path(path) / "config.json" if Path(path).is_dir() else path
    try:
        with reading(
            model,
            f"the configuration {file}",
            "Repair or re-download this checkpoint; code of its own needs --trust-remote-code.",
        ):
            config = model.config(trust_remote_code=options.trust_remote_code)
    except InputError as error:
        if Path(path).is_dir() or not isinstance(error.__cause__, OSError):
            raise
        reason = (str(error.__cause__).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"a configuration of the models {', '.join(map(str, models))} cannot be read: "
            f"{reason} A local folder is written as ./folder, a model of the hub as owner/name."
        ) from error
    architectures = getattr(config, "architectures", None)
    if not architectures or len(architectures) != 1:
        raise InputError(
            f"model {model}: `architectures` in {file} has to name one class of transformers, "
            f"and is {architectures!r}. Add it, such as "
            '`"architectures": ["Qwen2ForCausalLM"]`: it is what save_pretrained writes.'
        )
    return config


def open_model(model: ModelReference, options: MergeOptions) -> Checkpoint:
    """A model's weights on disk; an adapter is merged into its base before.

    Raises:
        InputError: naming model and file, for whatever stands in the way.
    """
    if model.lora is not None:
        return open_checkpoint(merged_adapter(model, options), str(model))
    return open_checkpoint(local_folder(model, options), str(model))


def local_folder(model: ModelReference, options: MergeOptions) -> str:
    """Where a model lies on this machine, downloaded if need be.

    Raises:
        InputError: it is not here and cannot be fetched.
    """
    path = model.model.path
    if Path(path).is_dir():
        return path
    if looks_local(path):
        raise InputError(
            f"model {model}: there is no folder {path}. Correct the path; a model of the hub is "
            "written as owner/name."
        )
    try:
        with reading(model, f"the model {path} of the hub", HUB_REMEDY):
            folder: str = model.local_path(cache_dir=options.transformers_cache, ignore_lora=True)
    except InputError as error:
        cached = _cached(model, options)
        if cached is None:
            raise
        raise InputError(
            f"model {model}: the hub cannot be asked for {path}, and mergekit asks it for every "
            f"model that is given by name. It is in the cache: give that folder, {cached}, as "
            "the model."
        ) from error
    return folder


def _cached(model: ModelReference, options: MergeOptions) -> str | None:
    """The folder of an earlier download."""
    try:
        return huggingface_hub.snapshot_download(
            model.model.path,
            revision=model.model.revision,
            cache_dir=options.transformers_cache,
            local_files_only=True,
        )
    except Exception:  # whatever it is, there is no folder to name
        LOG.info("no download of %s is in the cache", model, exc_info=True)
        return None
