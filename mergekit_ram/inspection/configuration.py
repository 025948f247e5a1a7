"""The configuration that is inspected: of any merge method, looked at as one of ``ram_plus``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge_methods import get

from mergekit_ram.autoload import METHOD_NAMES
from mergekit_ram.errors import InputError
from mergekit_ram.methods import RamPlusMerge
from mergekit_ram.plan.misplaced import warn_about_places

OWN_METHODS = METHOD_NAMES | {"ramplus_tl"}
"""Methods whose parameters mean what ours of the same name mean."""


def read_config(path: Path) -> MergeConfiguration:
    """A configuration of any merge method.

    Raises:
        InputError: the file cannot be read as one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        config = MergeConfiguration.model_validate(yaml.safe_load(text))
    except (OSError, ValueError, yaml.YAMLError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} cannot be read as a configuration of mergekit: {reason}. Give the YAML file "
            "of a merge, or the output folder of one by ram or ram_plus."
        ) from None
    if config.merge_method in METHOD_NAMES:
        warn_about_places(text, get(config.merge_method).spec)
    return config


def as_ram_plus(config: MergeConfiguration) -> MergeConfiguration:
    """The same models merged by ``ram_plus``, with those parameters that mean the same there."""
    if config.base_model is None and not _slices_name_bases(config):
        raise InputError(
            f"the configuration ({config.merge_method}) names no `base_model:`, the model that "
            "all agents were trained from. Add it."
        )
    # Recorded counts are not what is to be looked at.
    known = {parameter.name for parameter in RamPlusMerge.spec.parameters} - {"statistics"}
    keep = known if config.merge_method in OWN_METHODS else set()
    # By name, since fields left out and fields set to nothing are the same here.
    plain = config.model_dump(exclude_none=True)
    return MergeConfiguration.model_validate(
        _with_parameters(plain, keep) | {"merge_method": "ram_plus"}
    )


def _slices_name_bases(config: MergeConfiguration) -> bool:
    return bool(config.slices) and all(piece.base_model for piece in config.slices or ())


def _with_parameters(node: Any, keep: set[str]) -> Any:
    if isinstance(node, dict):
        return {
            key: {name: kept for name, kept in value.items() if name in keep}
            if key == "parameters" and isinstance(value, dict)
            else _with_parameters(value, keep)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_with_parameters(item, keep) for item in node]
    return node
