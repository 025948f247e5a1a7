"""The configuration that is inspected: of any merge method, looked at as one of ``ram_plus``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from mergekit.merge_methods import get
from pydantic import BaseModel

from mergekit_ram.autoload import METHOD_NAMES
from mergekit_ram.errors import InputError
from mergekit_ram.methods import RamPlusMerge
from mergekit_ram.plan.recipe import read_recipe, warn_about_places

OWN_METHODS = METHOD_NAMES | {"ramplus_tl"}
"""Methods whose parameters mean what ours of the same name mean."""

WAY_OUT = "Give the YAML file of a merge, or the output folder of one by ram or ram_plus."


def read_config(path: str | Path) -> MergeConfiguration:
    """A configuration of any merge method.

    Raises:
        InputError: the file cannot be read as one.
    """
    recipe = read_recipe(path, MergeConfiguration, WAY_OUT)
    method = recipe.config.merge_method
    if method in METHOD_NAMES:
        warn_about_places(recipe.data, get(method).spec)
    return recipe.config


def as_ram_plus(config: MergeConfiguration) -> MergeConfiguration:
    """The same models merged by ``ram_plus``, with those parameters that mean the same there."""
    if config.base_model is None and not _slices_name_bases(config):
        raise InputError(
            f"the configuration ({config.merge_method}) names no `base_model:`, the model that "
            "all agents were trained from. Add it."
        )
    spec = RamPlusMerge.spec
    if config.merge_method == spec.name:
        return config
    # Counts that a file records are of another merge than the one that is looked at.
    shared = {parameter.name for parameter in spec.shared_parameters} - {"statistics"}
    of_models = {parameter.name for parameter in spec.input_parameters}
    if config.merge_method not in OWN_METHODS:
        shared, of_models = set(), set()
    return MergeConfiguration.model_validate(
        _with_parameters(_plain(config), shared | of_models, of_models)
        | {"merge_method": spec.name}
    )


def _slices_name_bases(config: MergeConfiguration) -> bool:
    return bool(config.slices) and all(piece.base_model for piece in config.slices or ())


def _plain(node: Any) -> Any:
    """A configuration as nested tables, without what is set to nothing.

    Models stay objects: written as text, a folder with a + in its name is a base and an adapter.
    """
    if isinstance(node, BaseModel) and not isinstance(node, ModelReference):
        found = {name: getattr(node, name) for name in type(node).model_fields}
        return {name: _plain(value) for name, value in found.items() if value is not None}
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(item) for item in node]
    return node


def _with_parameters(node: Any, keep: set[str], of_models: set[str]) -> Any:
    """The same without parameters but those to keep; in a model's section, those of models."""
    if isinstance(node, dict):
        here = of_models if "model" in node else keep
        return {
            key: {name: kept for name, kept in value.items() if name in here}
            if key == "parameters" and isinstance(value, dict)
            else _with_parameters(value, keep, of_models)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_with_parameters(item, keep, of_models) for item in node]
    return node
