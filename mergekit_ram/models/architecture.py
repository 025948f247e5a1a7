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

from mergekit_ram.errors import InputError
from mergekit_ram.merges.boundary import working
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
        self._names = {m: [*found.headers, *found.promised] for m, found in checkpoints.items()}
        self._places: dict[str, Place] = {}
        for names in self._names.values():
            self._look_up({variant for name in names for variant, _ in unwrapped(name)})

    def by_definition(self, definition: ModelArchitecture, planned: set[str]) -> NamedModels:
        """mergekit's definition, whatever it leaves out."""
        self._look_up(planned)
        base = self._match(self._base, planned)
        namings = {model: self._match(model, planned | base.stored.keys()) for model in self._names}
        return self._checked(definition, namings | {self._base: base}, {*planned, *base.stored})

    def by_base(self, config: Any) -> NamedModels:
        """The architecture of the tensors that the base stores."""
        base = match(self._names[self._base], self._loaded_names(), self._keys)
        here = self._checkpoints[self._base].headers
        kept = {n for n, old in base.stored.items() if old in here and self._is_kept(n)}
        self._check_base(base, kept)
        others = {m: self._match(m, kept) for m in self._names if m != self._base}
        stored = {name for naming in others.values() for name in naming.stored}
        planned = self._repacked(kept | self._heads(stored), stored)
        weights = [self._weight(name, planned) for name in planned]
        architecture = architecture_of(weights, config, config.architectures[0])
        return self._checked(architecture, {self._base: base, **others}, planned)

    def _look_up(self, names: set[str]) -> None:
        if self._layout is not None:
            self._places |= self._layout.places(names - self._places.keys())

    @property
    def _keys(self) -> dict[str, str]:
        return {name: place.key for name, place in self._places.items()}

    def _place(self, name: str) -> Place:
        return self._places.get(name) or Place(name, frozenset({name}))

    def _is_kept(self, name: str) -> bool:
        """Whether a tensor is part of the model, and not passed over by transformers."""
        if self._layout is None or self._place(name).targets:
            return True
        return not self._layout.is_ignored(name)

    def _loaded_names(self) -> set[str]:
        """The base's names without wrappers, as far as it is known what they would load."""
        names = self._names[self._base]
        variants = [[variant for variant, _ in unwrapped(name)] for name in names]
        if self._layout is not None:
            return {v for own in variants for v in own if self._places[v].targets}
        is_wrapped = all(len(own) > 1 for own in variants)
        return {own[-1] for own in variants} if is_wrapped else {*names}

    def _match(self, model: ModelReference, planned: set[str]) -> Naming:
        """A model's names, after the plan or else after transformers."""
        keys = self._keys
        known = self._layout.keys if self._layout else frozenset()
        return match(
            self._names[model], planned | (known - {keys.get(n, n) for n in planned}), keys
        )

    def _check_base(self, naming: Naming, kept: set[str]) -> None:
        """A tensor that an index lists and no file holds is missed where it is needed."""
        missing = self._layout.missing(map(self._place, kept)) if self._layout else set()
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
        tied = [n for n in sorted(planned) if source and self._place(n).key == source]
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
        """Leave out what transformers passes over, and refuse models of other names."""
        kept = {}
        for model, found in namings.items():
            stored = {n: o for n, o in found.stored.items() if n in planned or self._is_kept(n)}
            kept[model] = Naming(stored, found.wrappers)
            headers = self._checkpoints[model].headers
            floating = [
                name
                for name, old in stored.items()
                if old in headers and headers[old].dtype.is_floating_point
            ]
            check_names(model, floating, planned)
        return NamedModels(architecture, kept)
