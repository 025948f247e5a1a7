"""Chooses the architecture of a merge, and the names by which its models are read.

The base decides. A merge of whole models takes the base's own checkpoint as its architecture: every
tensor that the base stores is merged under the name under which it is stored, so that transformers
loads the output as it loads the base. Only where a recipe speaks of a model's structure, by
``slices:`` or ``modules:``, mergekit's definition of the base's architecture is used, if there is
one; tensors of the base that it does not name are refused later, by the plan's inventory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mergekit.architecture import ModelArchitecture, WeightInfo
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration

from mergekit_ram.errors import InputError, working
from mergekit_ram.models.checkpoints import Checkpoint
from mergekit_ram.models.layers import architecture_of
from mergekit_ram.models.names import ARCHITECTURE_REMEDY, Naming, check_names, match, unwrapped
from mergekit_ram.models.transformers_layout import Place, TransformersLayout


@dataclass(frozen=True)
class NamedModels:
    """An architecture, and every model's names in it."""

    architecture: ModelArchitecture
    namings: Mapping[ModelReference, Naming]


def name_models(
    config: MergeConfiguration,
    base: ModelReference,
    base_config: Any,
    checkpoints: Mapping[ModelReference, Checkpoint],
    definition: ModelArchitecture | None,
    layout: TransformersLayout | None,
) -> NamedModels:
    """The architecture of a merge, and the names by which models are read.

    Args:
        config: of the merge.
        base: the model whose tensors make the output.
        base_config: the base's configuration.
        checkpoints: of all models.
        definition: mergekit's, of the base's architecture.
        layout: of the base in transformers; None where it cannot be built.

    Raises:
        InputError: tensors that transformers needs are missing from the base, or a model has
            nothing to do with it.
    """
    models = _StoredModels(base, checkpoints, layout)
    if config.models or definition is None:
        return models.by_base(base_config)
    weights = weights_of(definition, base_config)
    return models.by_definition(definition, all_names(weights))


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


class _StoredModels:
    """The names in all checkpoints, and where transformers loads them."""

    def __init__(
        self,
        base: ModelReference,
        checkpoints: Mapping[ModelReference, Checkpoint],
        layout: TransformersLayout | None,
    ):
        self._base = base
        self._checkpoints = checkpoints
        self._layout = layout
        self._places: dict[str, Place] = {}
        self._keys: dict[str, str] = {}
        self._names: dict[ModelReference, list[str]] = {}
        for model, checkpoint in checkpoints.items():
            names = [*checkpoint.headers, *checkpoint.promised]
            self._look_up({variant for name in names for variant, _ in unwrapped(name)})
            self._names[model] = [name for name in names if self._is_part(name)]

    def by_definition(self, definition: ModelArchitecture, planned: set[str]) -> NamedModels:
        """mergekit's definition, whatever it leaves out."""
        self._look_up(planned)
        base = self._match(planned, [self._base])[self._base]
        namings = self._match(planned | base.stored.keys(), self._names)
        return self._checked(definition, namings | {self._base: base}, {*planned, *base.stored})

    def by_base(self, config: Any) -> NamedModels:
        """The architecture of the tensors that the base stores."""
        base = match(self._names[self._base], self._loaded_names(), self._keys)
        here = self._checkpoints[self._base].headers
        held = {name for name, old in base.stored.items() if old in here}
        self._check_base(base, held)
        others = self._match(held, [model for model in self._names if model != self._base])
        stored = {name for naming in others.values() for name in naming.stored}
        planned = self._repacked(held | self._heads(stored), stored)
        weights = [self._weight(name, planned) for name in planned]
        architecture = architecture_of(weights, config, config.architectures[0])
        return self._checked(architecture, {self._base: base, **others}, planned)

    def _look_up(self, names: set[str]) -> None:
        if self._layout is not None:
            found = self._layout.places(names - self._places.keys())
            self._places |= found
            self._keys |= {name: place.key for name, place in found.items()}

    def _place(self, name: str) -> Place:
        return self._places.get(name) or Place(name, frozenset({name}))

    def _is_part(self, name: str) -> bool:
        """Whether a stored tensor is part of the model, and not passed over by transformers."""
        layout = self._layout
        return layout is None or any(
            self._places[variant].targets or not layout.is_ignored(variant)
            for variant, _ in unwrapped(name)
        )

    def _loaded_names(self) -> set[str]:
        """The base's names without wrappers, as far as it is known what they would load."""
        names = self._names[self._base]
        variants = [[variant for variant, _ in unwrapped(name)] for name in names]
        if self._layout is not None:
            return {v for own in variants for v in own if self._places[v].targets}
        is_wrapped = all(len(own) > 1 for own in variants)
        return {own[-1] for own in variants} if is_wrapped else {*names}

    def _match(
        self, planned: set[str], models: Iterable[ModelReference]
    ) -> dict[ModelReference, Naming]:
        """The models' names after the plan; those of what it lacks after transformers."""
        wanted = set(planned)
        if self._layout is not None:
            wanted |= self._layout.keys - {self._keys.get(name, name) for name in planned}
        return {model: match(self._names[model], wanted, self._keys) for model in models}

    def _check_base(self, naming: Naming, held: set[str]) -> None:
        """A tensor that an index lists and no file holds is missed where it is needed."""
        missing = self._layout.missing(map(self._place, held)) if self._layout else set()
        promised = self._checkpoints[self._base].promised
        for name, old in naming.stored.items():
            if old in promised and (not self._layout or self._place(name).targets & missing):
                raise promised[old]
        if missing:
            raise InputError(
                f"model {self._base}: tensor {min(missing)} is missing, and the architecture "
                f"requires it. {ARCHITECTURE_REMEDY}"
            )

    def _heads(self, stored: set[str]) -> set[str]:
        """Weights that the base takes from others and that an agent stores."""
        tied = self._layout.tied if self._layout else {}
        return {name for name in stored if self._place(name).key in tied}

    def _repacked(self, planned: set[str], stored: set[str]) -> set[str]:
        """Experts that an agent stores packed and the base does not are merged packed.

        mergekit packs them; it cannot take them apart.
        """
        pieces = defaultdict(set)
        for name in planned:
            for target in self._place(name).targets:
                pieces[target].add(name)
        packed = {name for name in stored - planned if name in pieces}
        return planned.difference(*(pieces[name] for name in packed)) | packed

    def _weight(self, name: str, planned: set[str]) -> WeightInfo:
        if self._layout is None:
            return WeightInfo(name=name, optional=True)
        place = self._place(name)
        source = self._layout.tied.get(place.key)
        tied = sorted(n for n in planned if self._place(n).key == source) if source else []
        return WeightInfo(
            name=name,
            optional=bool(source) or self._layout.required.isdisjoint(place.targets),
            vocabulary_axis=self._layout.vocabulary.get(place.key),
            tied_names=tuple(tied) or None,
        )

    def _checked(
        self,
        architecture: ModelArchitecture,
        namings: Mapping[ModelReference, Naming],
        planned: set[str],
    ) -> NamedModels:
        for model, naming in namings.items():
            headers = self._checkpoints[model].headers
            floating = [
                name
                for name, old in naming.stored.items()
                if old in headers and headers[old].dtype.is_floating_point
            ]
            check_names(model, floating, planned)
        return NamedModels(architecture, namings)
