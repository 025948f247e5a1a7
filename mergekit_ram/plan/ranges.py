"""Modules and ranges of layers that a configuration names, and the models do not have."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from mergekit.architecture import ModelArchitecture, ModuleArchitecture
from mergekit.common import ModelReference, get_config_value
from mergekit.config import (
    InputModelDefinition,
    InputSliceDefinition,
    MergeConfiguration,
    OutputSliceDefinition,
)

from mergekit_ram.errors import InputError, one_line
from mergekit_ram.plan.architecture import CheckpointModule

LOG = logging.getLogger("mergekit_ram")

COUNTED = "Layers are counted from 0, and the second number is the first that is left out."
UNEQUAL = (
    "All models must be of one architecture and size; parts of deeper ones are merged with "
    "`slices:` and a `layer_range:` for each."
)


def check_layers(
    config: MergeConfiguration,
    architecture: ModelArchitecture,
    configs: Mapping[ModelReference, Any],
) -> None:
    """Check that every module and every layer that is asked for is there.

    Args:
        config: of a merge.
        architecture: by which it is planned.
        configs: of all its models.

    Raises:
        InputError: it names the module, or the models with their ranges and numbers of layers.
    """
    known = {name: module.architecture for name, module in architecture.modules.items()}
    _check_modules(config, known)
    first = next(iter(known.values()))
    for piece in config.slices or ():
        _check_slice(piece, first, configs)
    for module in known.values() if config.models else ():
        _check_depths(config, config.models or (), module, configs)
    for name, definition in (config.modules or {}).items():
        for piece in definition.slices or ():
            _check_slice(piece, known[name], configs)
        _check_depths(config, definition.models or (), known[name], configs)


def chosen_layer_types(
    config: MergeConfiguration, configs: Mapping[ModelReference, Any]
) -> tuple[str, ...] | None:
    """The types of the layers that slices put one after the other.

    mergekit sets the output's number of layers and leaves ``layer_types`` as the base has it, which
    transformers refuses to save when all is merged.

    Args:
        config: of a merge, its layer ranges checked.
        configs: of all its models.

    Returns:
        None where nothing is cut, or a model does not say of what type its layers are.
    """
    modules = [module.slices for module in (config.modules or {}).values()]
    pieces = config.slices or (modules[0] if len(modules) == 1 else None)
    found: list[str] = []
    for piece in pieces or ():
        source = piece.sources[0]
        types = getattr(configs[source.model], "layer_types", None)
        if not types:
            return None
        found += types[slice(*source.layer_range)]
    return tuple(found) or None


def _check_modules(config: MergeConfiguration, known: Mapping[str, Any]) -> None:
    for name in config.modules or {}:
        if name not in known:
            raise InputError(
                f"`modules:` names {name}, and the models have no such module; they have "
                f"{', '.join(known)}. Write one of these, or list the models under `models:`."
            )


def _check_slice(
    piece: OutputSliceDefinition,
    module: ModuleArchitecture,
    configs: Mapping[ModelReference, Any],
) -> None:
    for source in piece.sources:
        _check_range(source, module, configs[source.model])
    lengths = {_length(source) for source in piece.sources}
    if len(lengths) > 1:
        ranges = ", ".join(f"{s.model} {[*s.layer_range]} ({_length(s)})" for s in piece.sources)
        raise InputError(
            f"the sources of a slice have to have the same number of layers, and have {ranges}. "
            "Correct their `layer_range:`."
        )


def _check_range(source: InputSliceDefinition, module: ModuleArchitecture, config: Any) -> None:
    start, end = source.layer_range
    layers = _stored_layers(module, config)
    is_without_layers = start == end == 0 and not layers
    if not is_without_layers and not 0 <= start < end:
        wrong = "is empty" if start == end else "runs backwards" if start > end else "is negative"
    elif layers is not None and end > layers:
        wrong = "goes beyond the model"
    else:
        return
    has = "" if layers is None else f"; the model has {_counted(layers)}"
    raise InputError(
        f"model {source.model}: `layer_range: [{start}, {end}]` {wrong}{has}. {COUNTED}"
    )


def _check_depths(
    config: MergeConfiguration,
    models: Iterable[InputModelDefinition],
    module: ModuleArchitecture,
    configs: Mapping[ModelReference, Any],
) -> None:
    """Models that are merged as a whole have to be equally deep."""
    named = [entry.model for entry in models]
    if named and config.base_model is not None:
        named.insert(0, config.base_model)
    depths = {model: _planned_layers(module, configs[model]) for model in named}
    if len({depth for depth in depths.values() if depth is not None}) > 1:
        said = ", ".join(f"{model} {depth}" for model, depth in depths.items())
        raise InputError(
            f"by their config.json the models have different numbers of layers: {said}. {UNEQUAL}"
        )


def _planned_layers(module: ModuleArchitecture, config: Any) -> int | None:
    """What mergekit takes for a model's number of layers; None where it finds none."""
    try:
        return int(module.num_layers(config))
    except Exception as error:  # a key that a configuration lacks is told of where it is needed
        LOG.info("the layers of a model cannot be counted: %s", one_line(error))
        return None


def _stored_layers(module: ModuleArchitecture, config: Any) -> int | None:
    """How many layers a model has; None where nothing tells."""
    if not isinstance(module, CheckpointModule):
        return _planned_layers(module, config)
    key = module.num_layers_config_key()
    if key is None:  # the module counts those of the base, whichever model is asked for
        return None if module.num_layers(config) else 0
    try:
        return int(get_config_value(config, key))
    except (RuntimeError, TypeError, ValueError):
        return None


def _length(source: InputSliceDefinition) -> int:
    return source.layer_range[1] - source.layer_range[0]


def _counted(layers: int) -> str:
    return f"{layers} layer" if layers == 1 else f"{layers} layers"
