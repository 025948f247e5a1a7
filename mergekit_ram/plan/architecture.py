"""An architecture read from the base's own checkpoint, for models that mergekit does not know.

Every tensor that the base stores is merged under the name under which it is stored, so that
transformers loads the output as it loads the base: with its own conversion of names and of
packed experts, and with nothing missing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from mergekit.architecture import ModelArchitecture, ModuleArchitecture, WeightInfo
from mergekit.architecture.base import ModuleDefinition
from mergekit.common import set_config_value
from mergekit.config import MergeConfiguration
from transformers.core_model_loading import dot_natural_key

from mergekit_ram.errors import InputError

LAYER = re.compile(r"\.(\d+)\.")
DEFAULT_MODULE = "default"


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
                "are not all alike, so that nothing says what a further one looks like. List the "
                "models under `models:`."
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
        vocab_size_config_key=vocabulary_key(config),
    )


def vocabulary_key(config: Any) -> str:
    """Where a configuration says how many tokens there are."""
    text = config.get_text_config()
    if text is not config:
        for key, value in vars(config).items():
            if value is text and hasattr(text, "vocab_size"):
                return f"{key}.vocab_size"
    return "vocab_size"


def set_vocabulary(config: Any, architecture: ModelArchitecture, rows: int) -> None:
    """Make a configuration say how many tokens there are."""
    set_config_value(config, architecture.vocab_size_config_key or vocabulary_key(config), rows)


def _layers_key(config: Any, layers: Mapping[int, Any]) -> str | None:
    number = max(layers, default=-1) + 1
    text = config.get_text_config()
    names = ["num_hidden_layers"]
    names += [f"{key}.num_hidden_layers" for key, value in vars(config).items() if value is text]
    for name in reversed(names):
        owner = text if "." in name else config
        if getattr(owner, "num_hidden_layers", None) == number:
            return name
    return None


def _renumbered(weight: WeightInfo, index: int) -> WeightInfo:
    return weight.model_copy(update={"name": LAYER.sub(f".{index}.", weight.name, count=1)})


def check_slices(config: MergeConfiguration, architecture: ModelArchitecture) -> None:
    """Layers that are not alike cannot be put in each other's place.

    Raises:
        InputError: slices do so.
    """
    slices = {name: module.slices for name, module in (config.modules or {}).items()}
    if config.slices:
        slices = {next(iter(architecture.modules)): config.slices}
    for name, pieces in slices.items():
        module = architecture.modules[name].architecture
        if not pieces or not isinstance(module, CheckpointModule) or module.is_uniform:
            continue
        layer = 0
        for piece in pieces:
            for source in piece.sources:
                if source.layer_range[0] != layer:
                    raise InputError(
                        f"slices put layer {source.layer_range[0]} of {source.model} in place of "
                        f"layer {layer}, and the layers of {architecture.architectures[0]} are not "
                        "all alike. List the models under `models:`, or keep every layer at its "
                        "place."
                    )
            layer += piece.sources[0].layer_range[1] - piece.sources[0].layer_range[0]
