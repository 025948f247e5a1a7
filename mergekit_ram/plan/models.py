"""The models of a configuration made ready: their files, their names, their architecture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mergekit.architecture import (
    ConfiguredModuleArchitecture,
    ModelArchitecture,
    arch_info_for_config,
)
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import LoaderCache
from mergekit.options import MergeOptions

from mergekit_ram.errors import InputError, one_line
from mergekit_ram.merges.boundary import working
from mergekit_ram.merges.checkpoints import Checkpoint
from mergekit_ram.merges.naming import NamedLoader, Naming
from mergekit_ram.merges.notes import Note, tell
from mergekit_ram.plan import head, matching, ranges, recipe, references
from mergekit_ram.plan.architecture import check_slices, vocabulary_key
from mergekit_ram.plan.choice import ARCHITECTURE_REMEDY, Plan, choose
from mergekit_ram.plan.opening import open_all
from mergekit_ram.plan.tokenizers import check_tokenizers

LOG = logging.getLogger("mergekit_ram")

Find = Callable[[], ModelArchitecture]


@dataclass(frozen=True)
class Prepared:
    """What is known of a configuration's models before anything is planned.

    Attributes:
        config: that they are named in.
        architecture: by which mergekit plans.
        unties: the output embedding is a weight of its own, whatever the configuration says.
        notes: that the user has been told, for the record.
        configs: the models' own.
        layer_types: of the output's layers, where slices choose them; None where nothing tells.
    """

    config: MergeConfiguration
    architecture: ModelArchitecture
    unties: bool
    notes: tuple[Note, ...]
    configs: tuple[Any, ...]
    layer_types: tuple[str, ...] | None = None

    def spoken_for(self) -> set[str]:
        """Names of all weights in the modules that the merge makes, in its slices or not."""
        names: set[str] = set()
        for name in self.config.modules or {}:
            module = self.architecture.modules[name]
            for found in self.configs:
                whole = ConfiguredModuleArchitecture(
                    info=module.architecture, config=found, weight_prefix=module.weight_prefix
                )
                for weight in whole.all_weights():
                    names |= {weight.name, *(weight.aliases or ()), *(weight.tied_names or ())}
        return names


_latest: list[Prepared] = []


def ready(
    config: MergeConfiguration,
    options: MergeOptions,
    architecture: ModelArchitecture,
    out_config: Any,
) -> Prepared:
    """What :func:`prepare` makes of a configuration, or has made of it already.

    Args:
        config: of the merge.
        options: of mergekit's commands.
        architecture: that mergekit has found.
        out_config: the output's configuration, which is made to say whether its head is tied.
    """
    made = [found for found in _latest if found.config is config]
    prepared = made[0] if made else prepare(config, options, lambda: architecture)
    if prepared.unties:
        head.untie(out_config)
    if prepared.layer_types is not None:
        out_config.layer_types = [*prepared.layer_types]
    return prepared


def prepare(config: MergeConfiguration, options: MergeOptions, find: Find) -> Prepared:
    """Open all models, check them, and settle by which names their tensors are merged.

    mergekit's loaders of these models are exchanged for ones that give tensors by those names.

    Args:
        config: of a merge by one of our methods.
        options: of mergekit's commands.
        find: mergekit's search for the architecture.

    Raises:
        InputError: models that cannot be read, are given twice, or do not fit together;
            layers or modules that they do not have.
    """
    models = sorted(config.referenced_models(), key=str)
    references.check_names(models, options.transformers_cache)
    cache = LoaderCache()
    cache.setup(options=options)
    checkpoints, configs = open_all(models, options)
    references.check_identities(checkpoints)
    base = _base_of(config)
    known = all(arch_info_for_config(found) is not None for found in configs.values())
    mergekits = _found(find, models) if known or base is None else None
    notes = [*_notes_on_files(checkpoints)]
    if base is None:
        assert mergekits is not None
        plan = Plan.as_it_is(mergekits, checkpoints)
    else:
        plan = choose(
            config,
            base,
            checkpoints,
            configs[base],
            mergekits,
            lambda: _found(find, models),
            trust_remote_code=options.trust_remote_code,
        )
    ranges.check_layers(config, plan.architecture, configs)
    check_slices(config, plan.architecture)
    loaders = _install(cache, checkpoints, plan.namings, options)
    check_tokenizers(config, models, trust_remote_code=options.trust_remote_code)
    notes += matching.notes_on_names(plan.namings)
    apart: list[Note] = []
    if base is not None and head.ties(configs[base]):
        apart = [*head.heads_apart(_weights(plan.architecture, configs[base]), loaders)]
    notes += apart
    tell(notes)
    fitted = plan.architecture
    if base is not None:
        # mergekit looks for it at the top, where some models do not have it.
        key = {"vocab_size_config_key": vocabulary_key(configs[base])}
        fitted = fitted.model_copy(update=key)
    found = Prepared(
        config,
        fitted,
        bool(apart),
        tuple(notes),
        tuple(configs.values()),
        ranges.chosen_layer_types(config, configs),
    )
    _latest[:] = [found]
    return found


def forget_loaders() -> None:
    """Give other methods mergekit's own loaders again, which are kept from merge to merge."""
    loaders = LoaderCache.loaders
    for model in [model for model, loader in loaders.items() if isinstance(loader, NamedLoader)]:
        del loaders[model]


def find_architecture(
    find: Callable[..., Any], config: MergeConfiguration, *args: Any, **kwargs: Any
) -> Any:
    """mergekit's search for the models' architecture, after a check of their files.

    Raises:
        InputError: the models' files are broken, or do not fit together; an unknown dtype.
    """
    recipe.check_dtypes(config)
    given = {**dict(zip(("config", "options"), args, strict=False)), **kwargs}
    options = given.get("options") or MergeOptions()
    return prepare(config, options, lambda: find(*args, **kwargs)).architecture


def _found(find: Find, models: list[ModelReference]) -> ModelArchitecture:
    try:
        return find()
    except RuntimeError as error:
        raise InputError(
            f"the models {_listed(models)} do not fit together: {one_line(error)}. "
            f"{ARCHITECTURE_REMEDY}"
        ) from None
    except Exception as error:  # models are opened in it, and code of their own is run
        LOG.info("finding the architecture failed", exc_info=True)
        raise InputError(
            f"the architecture of the models {_listed(models)} cannot be found: "
            f"{type(error).__name__}: {one_line(error)}. {ARCHITECTURE_REMEDY}"
        ) from error


def _base_of(config: MergeConfiguration) -> ModelReference | None:
    """The model whose names are the output's; slices may name it instead of the whole merge."""
    if config.base_model is not None:
        return config.base_model
    pieces = [*(config.slices or ())]
    for module in (config.modules or {}).values():
        pieces += module.slices or ()
    return next((piece.base_model for piece in pieces if piece.base_model), None)


def _weights(architecture: ModelArchitecture, config: Any) -> list[Any]:
    with working("listing the architecture's weights"):
        return list(architecture.all_weights(config))


def _install(
    cache: LoaderCache,
    checkpoints: Mapping[ModelReference, Checkpoint],
    namings: Mapping[ModelReference, Naming],
    options: MergeOptions,
) -> dict[ModelReference, NamedLoader]:
    loaders = {
        model: NamedLoader(str(model), checkpoint, options.lazy_unpickle, namings[model].stored)
        for model, checkpoint in checkpoints.items()
    }
    cache.loaders.update(loaders)
    return loaders


def _notes_on_files(checkpoints: Mapping[ModelReference, Checkpoint]) -> list[Note]:
    return [
        Note(
            "several-descriptions",
            f"model {model}: its folder describes weights more than once; "
            f"{checkpoint.description} is read, as transformers does, and "
            f"{' and '.join(checkpoint.unread)} is not",
        )
        for model, checkpoint in checkpoints.items()
        if checkpoint.unread
    ]


def _listed(models: list[ModelReference]) -> str:
    return ", ".join(map(str, models))
