"""How a configuration names its models: each of them once, and by a name that means one thing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from mergekit.common import ModelReference

from mergekit_ram.errors import InputError
from mergekit_ram.merges.checkpoints import Checkpoint
from mergekit_ram.merges.headers import shard_path

MAIN = "main"
"""The revision of the hub that a name without one means."""

Identity = tuple[object, ...]


def check_names(models: Iterable[ModelReference], cache: str | None) -> None:
    """Check what can be known from the names alone, and from the hub's cache.

    Args:
        models: of a configuration.
        cache: of the hub; its usual place by default.

    Raises:
        InputError: a folder that does not exist, two models of one name, or one under two.
    """
    by_name: dict[str, ModelReference] = {}
    places: dict[tuple[object, object], ModelReference] = {}
    for model in models:
        if by_name.setdefault(str(model), model) != model:
            raise InputError(
                f"two models are called {model}: one is a folder with a + in its name, the other "
                "a base and an adapter. Rename the folder."
            )
        path = model.model.path
        if not Path(path).is_dir() and looks_local(path):
            raise InputError(_no_folder(model))
        twin = places.setdefault((_place(model, cache), _adapter(model)), model)
        if twin is not model:
            are_folders = Path(path).is_dir() and Path(twin.model.path).is_dir()
            how = "are the same folder" if are_folders else "are one model of the hub"
            raise same_model(twin, model, how)
        if model.lora is None or Path(model.lora.path).is_dir():
            continue
        if looks_local(model.lora.path) or _plus(model):
            raise InputError(_no_adapter(model))


def check_identities(checkpoints: Mapping[ModelReference, Checkpoint]) -> None:
    """Check that no model is given twice, wherever it lies.

    A folder, a link to it, and a place in the cache of the hub may all lead to the same files.

    Raises:
        InputError: two models that are read from the same files.
    """
    seen: dict[Identity, ModelReference] = {}
    for model, checkpoint in checkpoints.items():
        twin = seen.setdefault(_identity(checkpoint), model)
        if twin is not model:
            raise same_model(twin, model, "are read from the same files")


def same_model(first: ModelReference, second: ModelReference, how: str) -> InputError:
    """The error about one model under two names."""
    return InputError(
        f"the models {first} and {second} {how}; a merge would count its updates twice. Name "
        "every model once, and in one way."
    )


def looks_local(path: str) -> bool:
    """Whether a model's name can only be meant as a folder."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1


def _place(model: ModelReference, cache: str | None) -> object:
    """Where a model lies, or would lie after a download."""
    path, revision = model.model.path, model.model.revision
    if Path(path).is_dir():
        return Path(path).resolve()
    try:
        found = try_to_load_from_cache(path, "config.json", cache_dir=cache, revision=revision)
    except HFValidationError:  # it is no name of the hub, which is said where it is opened
        found = None
    if isinstance(found, str):
        # The file may be a link out of its folder.
        return Path(found).parent.resolve()
    return path, revision or MAIN


def _adapter(model: ModelReference) -> object:
    if model.lora is None:
        return None
    folder = Path(model.lora.path)
    return folder.resolve() if folder.is_dir() else model.lora


def _identity(checkpoint: Checkpoint) -> Identity:
    files = [shard_path(checkpoint.index, shard.filename) for shard in checkpoint.index.shards]
    return tuple(sorted((file.stat().st_dev, file.stat().st_ino) for file in files))


def _no_folder(model: ModelReference) -> str:
    path = model.model.path
    way_out = "Correct the path; a model of the hub is written as owner/name."
    return f"model {model}: there is no folder {path}. {_home(path) or way_out}" + _plus(model)


def _no_adapter(model: ModelReference) -> str:
    assert model.lora is not None
    path = model.lora.path
    home = _home(path)
    text = f"model {model}: there is no adapter folder {path}." + (home and f" {home}")
    return text + _plus(model)


def _home(path: str) -> str:
    """What a ~ in a name means: nothing, where no shell reads it."""
    if not path.startswith("~"):
        return ""
    return f"A ~ is not expanded in a recipe: write {os.path.expanduser(path)}."


def _plus(model: ModelReference) -> str:
    """What the + in a name means, for whoever has a folder with one."""
    if model.lora is None or not Path(str(model)).is_dir():
        return ""
    return (
        " A + separates a base from its adapter; a folder with a + in its name is written as "
        f"`model: {{model: {{path: {model}}}}}`."
    )
