"""Opens the models of a configuration, checks them, and names their tensors after the base's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mergekit.architecture import (
    ConfiguredModelArchitecture,
    ModelArchitecture,
    WeightInfo,
    arch_info_for_config,
)
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import LoaderCache
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError, Note, tell
from mergekit_ram.models.architecture import (
    all_names,
    check_layers,
    chosen_layer_types,
    text_key,
    weights_of,
)
from mergekit_ram.models.checkpoints import Checkpoint
from mergekit_ram.models.loader import NamedLoader
from mergekit_ram.models.matching import ARCHITECTURE_REMEDY, Naming, name_models
from mergekit_ram.models.opening import open_models
from mergekit_ram.models.transformers_layout import TransformersLayout, layout_of
from mergekit_ram.models.vocabularies import check_vocabularies

TIE = "tie_word_embeddings"


@dataclass(frozen=True)
class Prepared:
    """What is known of a configuration's models before anything is planned.

    Attributes:
        config: that they are named in.
        architecture: by which mergekit plans.
        layout: of the base in transformers; None where it cannot be built.
        is_quantised: some of the base's weights are, and are copied.
        unties: the output embedding is a weight of its own, whatever the configuration says.
        notes: that the user has been told, for the record.
        configs: the models' own.
        layer_types: of the output's layers, where slices choose them; None where nothing tells.
    """

    config: MergeConfiguration
    architecture: ModelArchitecture
    layout: TransformersLayout | None
    is_quantised: bool
    unties: bool
    notes: tuple[Note, ...]
    configs: tuple[Any, ...]
    layer_types: list[str] | None = None

    def fit(self, out_config: Any) -> None:
        """Make the output's configuration say what holds for its weights, and no more."""
        if not self.is_quantised and hasattr(out_config, "quantization_config"):
            del out_config.quantization_config
        if self.unties:
            for part in (out_config, out_config.get_text_config()):
                if is_tied(part):
                    setattr(part, TIE, False)
        if self.layer_types is not None:
            out_config.layer_types = self.layer_types

    def known_names(self) -> set[str]:
        """Names of all weights in the modules that the merge makes, in its slices or not."""
        names: set[str] = set()
        for config in self.configs:
            whole = ConfiguredModelArchitecture(info=self.architecture, config=config)
            for module in self.config.modules or {}:
                names |= all_names(whole.get_module(module).all_weights())
        return names


_latest: list[Prepared] = []


def prepared_models(config: MergeConfiguration, options: MergeOptions) -> Prepared:
    """What :func:`prepare` makes of a configuration, or has made of it already."""
    made = [found for found in _latest if found.config is config]
    return made[0] if made else prepare(config, options)


def prepare(config: MergeConfiguration, options: MergeOptions) -> Prepared:
    """Open all models, check them, and settle by which names their tensors are merged.

    mergekit's loaders of these models are exchanged for ones that give tensors by those names.

    Args:
        config: of a merge by one of our methods.
        options: of mergekit's commands.

    Raises:
        InputError: models that cannot be read, are given twice, or do not fit together;
            layers or modules that they do not have.
    """
    models = sorted(config.referenced_models(), key=str)
    cache = LoaderCache()
    cache.setup(options=options)
    checkpoints, configs = open_models(models, options)
    base = _base_of(config) or models[0]  # A method refuses a merge without a base later.
    definition = _definition(base, configs, options)
    layout = layout_of(configs[base], trust_remote_code=options.trust_remote_code)
    named = name_models(config, base, configs[base], checkpoints, definition, layout)
    check_layers(config, named.architecture, configs)
    loaders = {
        model: NamedLoader(
            str(model), checkpoint, options.lazy_unpickle, named.namings[model].stored
        )
        for model, checkpoint in checkpoints.items()
    }
    cache.loaders.update(loaders)
    weights = weights_of(named.architecture, configs[base])
    check_vocabularies(config, weights, loaders, trust_remote_code=options.trust_remote_code)
    _check_orientation(weights, base, loaders)
    apart = [*_heads_apart(weights, loaders)] if is_tied(configs[base]) else []
    notes = (*_notes(checkpoints, named.namings), *apart)
    tell(notes)
    # mergekit looks for it at the top, where some models do not have it.
    key = {"vocab_size_config_key": text_key(configs[base], "vocab_size")}
    found = Prepared(
        config,
        named.architecture.model_copy(update=key),
        layout,
        checkpoints[base].quantisation is not None,
        bool(apart),
        notes,
        tuple(configs.values()),
        chosen_layer_types(config, configs),
    )
    _latest[:] = [found]
    return found


def forget_loaders() -> None:
    """Give other methods mergekit's own loaders again, which are kept from merge to merge."""
    loaders = LoaderCache.loaders
    for model in [model for model, loader in loaders.items() if isinstance(loader, NamedLoader)]:
        del loaders[model]


def is_tied(config: Any) -> bool:
    """Whether a configuration says that the output embedding is the input embedding."""
    return bool(getattr(config, TIE, False))


def _base_of(config: MergeConfiguration) -> ModelReference | None:
    """The model whose names are the output's; slices may name it instead of the whole merge."""
    if config.base_model is not None:
        return config.base_model
    pieces = [*(config.slices or ())]
    for module in (config.modules or {}).values():
        pieces += module.slices or ()
    return next((piece.base_model for piece in pieces if piece.base_model), None)


def _definition(
    base: ModelReference, configs: Mapping[ModelReference, Any], options: MergeOptions
) -> ModelArchitecture | None:
    """mergekit's definition of the base's architecture.

    Raises:
        InputError: a model has another one.
    """
    found = {model: arch_info_for_config(config) for model, config in configs.items()}
    for model, definition in found.items():
        if None not in found.values() and definition != found[base] and not options.allow_crimes:
            one, other = (configs[each].architectures[0] for each in (base, model))
            raise InputError(
                f"the base {base} ({one}) and the model {model} ({other}) do not fit together. "
                f"{ARCHITECTURE_REMEDY} --allow-crimes merges them by the base's."
            )
    return found[base]


def _check_orientation(
    weights: Iterable[WeightInfo],
    base: ModelReference,
    loaders: Mapping[ModelReference, NamedLoader],
) -> None:
    """Refuse packed experts that are stored transposed, which no shape tells where they are square.

    A trained matrix is nearer to the base's as it is than turned over, if not by chance.
    """
    for weight in weights:
        header = loaders[base].index.headers.get(weight.name)
        if header is None or len(header.shape) != 3 or header.shape[1] != header.shape[2]:
            continue
        found = {model: loader.peek(weight.name) for model, loader in loaders.items()}
        first = {model: t[0].float() for model, t in found.items() if t is not None}
        for model, matrix in first.items():
            if 2 * (matrix.mT - first[base]).norm() < (matrix - first[base]).norm():
                raise InputError(
                    f"model {model}: tensor {weight.name} is stored transposed: its first matrix "
                    "is nearer to the base's when it is turned over. Save this model with the "
                    "library that has saved the base (transformers' save_pretrained)."
                )


def _notes(
    checkpoints: Mapping[ModelReference, Checkpoint], namings: Mapping[ModelReference, Naming]
) -> Iterator[Note]:
    """What is odd about the models' files and names, one note per model and oddity."""
    for model, checkpoint in checkpoints.items():
        if checkpoint.unread:
            yield Note(
                "several-descriptions",
                f"model {model}: its folder describes weights more than once; "
                f"{checkpoint.description} is read, as transformers does, and "
                f"{' and '.join(checkpoint.unread)} is not",
            )
        if namings[model].wrappers:
            prefixes = ", ".join(f"`{wrapper}`" for wrapper in namings[model].wrappers)
            yield Note(
                "wrapped-names",
                f"model {model}: a trainer has left {prefixes} in the names of its tensors; they "
                "are read without it",
            )


def _heads_apart(
    weights: Sequence[WeightInfo], loaders: Mapping[ModelReference, NamedLoader]
) -> Iterator[Note]:
    """Models whose stored output embedding is another tensor than their input embedding.

    ``tie_word_embeddings: true`` is what a model was trained with, or what nobody has changed in
    its configuration. transformers looks at the tensors, and so does a merge.
    """
    for weight in weights:
        for tied in weight.tied_names or ():
            apart = [str(m) for m, own in loaders.items() if _differ(own, weight.name, tied)]
            if apart:
                yield Note(
                    "untied-head",
                    f"{', '.join(apart)}: {weight.name} is stored and differs from {tied}, though "
                    f"the base's configuration ties them ({TIE}: true). It is merged as a weight "
                    f"of its own, and the output's configuration says {TIE}: false.",
                )


def _differ(loader: NamedLoader, first: str, second: str) -> bool:
    one, other = loader.peek(first), loader.peek(second)
    if one is None or other is None:
        return False
    dtype = torch.promote_types(one.dtype, other.dtype)
    return not torch.equal(one.to(dtype), other.to(dtype))
