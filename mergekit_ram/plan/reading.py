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
from mergekit_ram.plan.misplaced import Level, check_dtypes, warn_about_places
from mergekit_ram.plan.misspelt import warn_about_parameters
from mergekit_ram.plan.recipe import read_yaml, understood_as

SAFETENSORS = ".safetensors"


def run_yaml(command: Callable[[], Any], path: Path) -> Any:
    """``mergekit-yaml`` on a recipe of ours.

    Raises:
        InputError: it is no YAML, or no configuration of mergekit; what a merge refuses comes
            from further in.
    """
    _, recipe = read_yaml(path)
    understood_as(MergeConfiguration, recipe, path)
    return command()


def run_raw(command: Callable[[], Any], path: Path) -> Any:
    """``mergekit-pytorch`` on a recipe of ours.

    Raises:
        RamError: it is no YAML or no configuration, names no dtype or a broken file, or cannot
            be merged.
    """
    from mergekit.scripts.merge_raw_pytorch import InputModelDefinition, RawPyTorchMergeConfig

    _, recipe = read_yaml(path)
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
    with boundary.working("the merge"):
        return command()
