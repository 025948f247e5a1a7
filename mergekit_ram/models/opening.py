"""Opens the models of a configuration: folders, models of the hub, and adapters on their bases."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mergekit.common import ModelPath, ModelReference
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError, reading
from mergekit_ram.models.adapters import merged_adapter
from mergekit_ram.models.checkpoints import Checkpoint, open_checkpoint, shard_path

NAMES = "A local folder is written as ./folder, a model of the hub as owner/name"
FOLDER_REMEDY = "Repair or re-download this checkpoint; code of its own needs --trust-remote-code."
HUB_REMEDY = (
    f"{NAMES}; without a network give the folder of a download, below snapshots/ in the cache."
)


def open_models(
    models: Sequence[ModelReference], options: MergeOptions
) -> tuple[dict[ModelReference, Checkpoint], dict[ModelReference, Any]]:
    """The weights and the configurations of all models; those that have to be made or fetched last.

    Raises:
        InputError: naming model and file, for anything that stands in the way; two models that
            are one.
    """
    _check_references(models)
    local = [model for model in models if model.lora is None and _is_folder(model)]
    checkpoints = {model: _open_model(model, options) for model in local}
    configs = {model: _read_config(model, options) for model in models}
    checkpoints |= {model: _open_model(model, options) for model in models if model not in local}
    _check_identities(checkpoints)
    _check_quantised(checkpoints)
    return {model: checkpoints[model] for model in models}, configs


def _check_references(models: Sequence[ModelReference]) -> None:
    """Check that every reference means one model, as far as its name tells."""
    by_name: dict[str, ModelReference] = {}
    for model in models:
        if by_name.setdefault(str(model), model) != model:
            raise InputError(
                f"two models are called {model}: one is a folder with a + in its name, the other "
                "a base and an adapter. Rename the folder."
            )
        is_split = model.lora is not None and Path(str(model)).is_dir()
        plus = (
            " A + separates a base from its adapter; a folder with a + in its name is written as "
            f"`model: {{model: {{path: {model}}}}}`."
        )
        for kind, part in (("folder", model.model), ("adapter folder", model.lora)):
            if part is None or Path(part.path).is_dir():
                continue
            if is_split or _looks_local(part.path):
                raise InputError(
                    f"model {model}: there is no {kind} {part.path}. Correct the path; a model of "
                    f"the hub is written as owner/name.{plus if is_split else ''}"
                )


def _check_identities(checkpoints: Mapping[ModelReference, Checkpoint]) -> None:
    """Check that no model is given twice, whether by a link, a copy of links or another name."""
    seen: dict[object, ModelReference] = {}
    for model, checkpoint in checkpoints.items():
        files = [shard_path(checkpoint.index, s.filename).stat() for s in checkpoint.index.shards]
        identity = frozenset((file.st_dev, file.st_ino) for file in files)
        twin = seen.setdefault(identity, model)
        if twin is not model:
            raise InputError(
                f"the models {twin} and {model} are read from the same files; a merge would count "
                "its updates twice. Name every model once, and in one way."
            )


def _check_quantised(checkpoints: Mapping[ModelReference, Checkpoint]) -> None:
    """Check that the quantised weights are those of one model, which a merge then copies."""
    for one, other in itertools.permutations(checkpoints, 2):
        own = checkpoints[one]
        differing = own.packed.items() - checkpoints[other].packed.items()
        if own.quantisation and differing:
            name, header = min(differing, key=lambda item: item[0])
            raise InputError(
                f"model {one}: its weights are quantised ({own.quantisation}; tensor {name} is "
                f"stored in {header.dtype}), and those of {other} are not so. They cannot be "
                "subtracted: merge the bfloat16, float16 or float32 originals."
            )


def _read_config(model: ModelReference, options: MergeOptions) -> Any:
    path = model.model.path
    file = Path(path) / "config.json" if _is_folder(model) else path
    remedy = FOLDER_REMEDY if _is_folder(model) else HUB_REMEDY
    with reading(model, f"the configuration {file}", remedy):
        config = model.config(trust_remote_code=options.trust_remote_code)
    architectures = getattr(config, "architectures", None)
    if not architectures or len(architectures) != 1:
        raise InputError(
            f"model {model}: `architectures` in {file} has to name one class of transformers, "
            f"and is {architectures!r}. Add it, such as "
            '`"architectures": ["Qwen2ForCausalLM"]`: it is what save_pretrained writes.'
        )
    return config


def _open_model(model: ModelReference, options: MergeOptions) -> Checkpoint:
    folder = _local_folder(model.model, model, options)
    if model.lora is not None:
        method = open_checkpoint(folder, str(model.model)).quantisation
        if method:
            raise InputError(
                f"model {model}: the base {model.model} is quantised ({method}), and an adapter "
                "cannot be merged into it. Give the 16-bit original before the +."
            )
        adapter = _local_folder(model.lora, model, options)
        folder = merged_adapter(model, folder, adapter, options)
    return open_checkpoint(folder, str(model))


def _local_folder(part: ModelPath, model: ModelReference, options: MergeOptions) -> str:
    """Where a model or an adapter lies on this machine, downloaded if need be."""
    if Path(part.path).is_dir():
        return part.path
    with reading(model, f"the model {part.path} of the hub", HUB_REMEDY):
        cache = options.transformers_cache
        folder: str = ModelReference(model=part).local_path(cache_dir=cache)
        return folder


def _is_folder(model: ModelReference) -> bool:
    return Path(model.model.path).is_dir()


def _looks_local(path: str) -> bool:
    """Whether a model's name can only be meant as a folder."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1
