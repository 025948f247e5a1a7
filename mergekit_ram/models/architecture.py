"""Turns a checkpoint's layers into modules of mergekit, and checks the layers of a recipe."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from mergekit.architecture import ModelArchitecture, ModuleArchitecture, WeightInfo
from mergekit.architecture.base import ModuleDefinition
from mergekit.common import ModelReference, get_config_value
from mergekit.config import MergeConfiguration, OutputSliceDefinition
from transformers.core_model_loading import dot_natural_key

from mergekit_ram.errors import InputError, working

LAYER = re.compile(r"\.(\d+)\.")
DEFAULT_MODULE = "default"

DEPTH = "num_hidden_layers"
"""Setting of a configuration."""


class CheckpointModule(ModuleArchitecture):
    """The weights of one stack of layers, and those without a layer."""

    def __init__(
        self,
        loose: Iterable[WeightInfo],
        layers: Mapping[int, list[WeightInfo]],
        layers_key: str | None,
    ):
        self._loose = list(loose)
        self._layers = [layers.get(number, []) for number in range(max(layers, default=-1) + 1)]
        self._layers_key = layers_key

    def pre_weights(self, config: Any) -> list[WeightInfo]:
        """Weights without a layer."""
        return list(self._loose)

    def post_weights(self, config: Any) -> list[WeightInfo]:
        """None: nothing says which weights come after the layers."""
        return []

    def layer_weights(self, index: int, config: Any) -> list[WeightInfo]:
        """Weights of one layer, those of like layers in the same order.

        Raises:
            InputError: slices ask for a layer that the base does not have, or that is unlike
                the layer that it is put in place of.
        """
        if index < len(self._layers):
            return self._layers[index]
        if not self.is_uniform:
            raise InputError(
                f"slices ask for layer {index}, and the base has {len(self._layers)} layers that "
                "are not all alike, so that this layer cannot be constructed. List the models "
                "under `models:`."
            )
        return [_renumbered(weight, index) for weight in self._layers[0]]

    @property
    def is_uniform(self) -> bool:
        """Whether all layers consist of the same weights."""
        kinds = {tuple(_renumbered(weight, 0).name for weight in layer) for layer in self._layers}
        return len(kinds) <= 1

    def num_layers_config_key(self) -> str | None:  # type: ignore[override]
        """Where a configuration says how many layers there are."""
        return self._layers_key

    def num_layers(self, config: Any) -> int:
        """Of the base, whatever a configuration says."""
        return len(self._layers)


def architecture_of(weights: Iterable[WeightInfo], config: Any, name: str) -> ModelArchitecture:
    """An architecture of these weights, with a module for each stack of layers.

    Modules are named as mergekit names them where it detects an architecture: by the prefix of
    their layers, or ``default``.

    Args:
        weights: of the whole model.
        config: of the base.
        name: of the architecture.
    """
    stacks: dict[str, dict[int, list[WeightInfo]]] = defaultdict(lambda: defaultdict(list))
    loose: list[WeightInfo] = []
    for weight in sorted(weights, key=lambda weight: dot_natural_key(weight.name)):
        place = LAYER.search(weight.name)
        if place is None:
            loose.append(weight)
        else:
            stacks[weight.name[: place.start()]][int(place[1])].append(weight)
    if len(stacks) <= 1:
        layers = next(iter(stacks.values()), {})
        modules = {DEFAULT_MODULE: CheckpointModule(loose, layers, _layers_key(config, layers))}
    else:
        modules = {
            prefix: CheckpointModule([], layers, _layers_key(config, layers))
            for prefix, layers in stacks.items()
        }
        modules |= {DEFAULT_MODULE: CheckpointModule(loose, {}, None)} if loose else {}
    return ModelArchitecture(
        modules={key: ModuleDefinition(architecture=module) for key, module in modules.items()},
        architectures=[name],
        model_type=str(getattr(config, "model_type", "")),
    )


def weights_of(architecture: ModelArchitecture, config: Any) -> list[WeightInfo]:
    """All weights of an architecture, for the model of a configuration."""
    with working("listing the architecture's weights"):
        return list(architecture.all_weights(config))


def all_names(weights: Iterable[WeightInfo]) -> set[str]:
    """The names of some weights, and those that may stand in their place."""
    return {
        name
        for weight in weights
        for name in (weight.name, *(weight.aliases or ()), *(weight.tied_names or ()))
    }


def text_key(config: Any, setting: str) -> str:
    """The key by which a configuration knows a setting of its text model."""
    text = config.get_text_config()
    for key, value in vars(config).items():
        if value is text and hasattr(text, setting):
            return f"{key}.{setting}"
    return setting


def _layers_key(config: Any, layers: Mapping[int, Any]) -> str | None:
    """The key of the number of layers, where it is that of these layers."""
    number = getattr(config.get_text_config(), DEPTH, None)
    return text_key(config, DEPTH) if number == max(layers, default=-1) + 1 else None


def _renumbered(weight: WeightInfo, index: int) -> WeightInfo:
    return weight.model_copy(update={"name": LAYER.sub(f".{index}.", weight.name, count=1)})


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
    modules = {name: module.architecture for name, module in architecture.modules.items()}
    parts: Mapping[str, Any] = config.modules or {next(iter(modules)): config}
    for name, part in parts.items():
        if name not in modules:
            raise InputError(
                f"`modules:` names {name}, and the models have no such module; they have "
                f"{', '.join(modules)}. Write one of these, or list the models under `models:`."
            )
        _check_slices(part.slices or (), modules[name], architecture.architectures, configs)
        _check_depths([entry.model for entry in part.models or ()], config.base_model, configs)


def _check_slices(
    pieces: Iterable[OutputSliceDefinition],
    module: ModuleArchitecture,
    architectures: list[str],
    configs: Mapping[ModelReference, Any],
) -> None:
    is_fixed = isinstance(module, CheckpointModule) and not module.is_uniform
    layer = 0
    for piece in pieces:
        for source in piece.sources:
            start, end = source.layer_range
            layers = _number_of_layers(module, configs[source.model])
            if not 0 <= start < end <= layers and (start, end) != (0, layers):
                raise InputError(
                    f"model {source.model}: `layer_range: [{start}, {end}]` is no range of its "
                    f"layers, of which it has {layers}. They are counted from 0, and the second "
                    "number is the first that is left out."
                )
            if is_fixed and start != layer:
                raise InputError(
                    f"slices put layer {start} of {source.model} in place of layer {layer}, and "
                    f"the layers of {', '.join(architectures)} are not all alike. List the models "
                    "under `models:`, or keep every layer at its place."
                )
        layer += end - start


def _number_of_layers(module: ModuleArchitecture, config: Any) -> float:
    """Of a model; infinity where its configuration does not tell."""
    if not isinstance(module, CheckpointModule):
        return module.num_layers(config)
    if not module.num_layers(config):
        return 0
    key = module.num_layers_config_key()
    return int(get_config_value(config, key)) if key else math.inf


def _check_depths(
    models: list[ModelReference], base: ModelReference | None, configs: Mapping[ModelReference, Any]
) -> None:
    """Models that are merged as a whole have to be equally deep."""
    named = [base, *models] if models and base else models
    depths = {model: getattr(configs[model].get_text_config(), DEPTH, None) for model in named}
    if len(set(depths.values())) > 1:
        said = ", ".join(f"{model} {depth}" for model, depth in depths.items())
        raise InputError(
            f"by their config.json the models have different numbers of layers: {said}. All models "
            "must be of one architecture and size; parts of deeper ones are merged with `slices:` "
            "and a `layer_range:` for each."
        )


def chosen_layer_types(
    config: MergeConfiguration, configs: Mapping[ModelReference, Any]
) -> list[str] | None:
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
    return found or None
