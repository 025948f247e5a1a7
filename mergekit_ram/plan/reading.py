"""Recipes of ours in mergekit's commands, looked at before these read them.

What the commands refuse by themselves ends in a traceback, and what they drop they do not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mergekit.config import MergeConfiguration
from mergekit.merge_methods import get

from mergekit_ram.merges import boundary
from mergekit_ram.models.checkpoints import read_shard
from mergekit_ram.plan.recipe import (
    check_dtypes,
    read_recipe,
    warn_about_parameters,
    warn_about_places,
)

SAFETENSORS = ".safetensors"


def run_yaml(command: Callable[[], Any], path: Path) -> Any:
    """``mergekit-yaml`` on a recipe of ours.

    Raises:
        InputError: it is no YAML, or no configuration of mergekit; what a merge refuses comes
            from further in.
    """
    read_recipe(path, MergeConfiguration)
    return command()


def run_raw(command: Callable[[], Any], path: Path) -> Any:
    """``mergekit-pytorch`` on a recipe of ours.

    Raises:
        RamError: it is no YAML or no configuration, names no dtype or a broken file, or cannot
            be merged.
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
    with boundary.working("the merge"):
        return command()
