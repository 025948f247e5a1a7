"""Recipes of ``mergekit-pytorch``, checked before the command reads them."""

from __future__ import annotations

from pathlib import Path

from mergekit.merge_methods import get

from mergekit_ram.merges.headers import read_shard
from mergekit_ram.plan.recipe import (
    check_dtypes,
    read_recipe,
    warn_about_parameters,
    warn_about_places,
)

SAFETENSORS = ".safetensors"


def check_raw(path: str) -> None:
    """Refuse a recipe of ours for which the command would end in a traceback, warn of lost keys.

    Raises:
        RamError: it is no configuration, or names no dtype or a broken file.
    """
    from mergekit.scripts.merge_raw_pytorch import RawPyTorchMergeConfig

    recipe = read_recipe(path, RawPyTorchMergeConfig)
    config = recipe.config
    check_dtypes(config)
    spec = get(config.merge_method).spec
    warn_about_places(recipe.data, spec, RawPyTorchMergeConfig)
    warn_about_parameters(config, spec)
    paths = [config.base_model, *(entry.model for entry in config.models)]
    for weights in filter(None, dict.fromkeys(paths)):
        is_safetensors = weights.lower().endswith(SAFETENSORS)
        read_shard(Path(weights), is_safetensors, weights)
