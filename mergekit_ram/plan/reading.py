"""Recipes of ``mergekit-pytorch``, checked before the command reads them."""

from __future__ import annotations

from pathlib import Path

from mergekit.merge_methods import get

from mergekit_ram.merges.headers import read_shard
from mergekit_ram.plan.misplaced import Level, check_dtypes, warn_about_places
from mergekit_ram.plan.misspelt import warn_about_parameters
from mergekit_ram.plan.recipe import understood_as

SAFETENSORS = ".safetensors"


def check_raw(recipe: object, path: str) -> None:
    """Refuse what the command would end in a traceback for, and warn of what it drops.

    Args:
        recipe: of one of our methods, as read from YAML.
        path: of its file.

    Raises:
        RamError: it is no configuration, or names no dtype or a broken file.
    """
    from mergekit.scripts.merge_raw_pytorch import InputModelDefinition, RawPyTorchMergeConfig

    config = understood_as(RawPyTorchMergeConfig, recipe, path)
    check_dtypes(config)
    spec = get(config.merge_method).spec
    model = Level("model", InputModelDefinition, {})
    warn_about_places(recipe, spec, Level("recipe", RawPyTorchMergeConfig, {"models": model}))
    warn_about_parameters(config, spec)
    paths = [config.base_model, *(entry.model for entry in config.models)]
    for weights in filter(None, dict.fromkeys(paths)):
        is_safetensors = weights.lower().endswith(SAFETENSORS)
        read_shard(Path(weights), is_safetensors, weights)
