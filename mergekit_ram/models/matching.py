"""Matches the tensors of all models, and decides by which names they are merged.

The base decides. A merge of whole models takes the base's own checkpoint as its architecture: every
tensor that the base stores is merged under the name under which it is stored, so that transformers
loads the output as it loads the base. Only where a recipe speaks of a model's structure,
mergekit's definition of the base's architecture is used, if it names all that the base stores, or
knows modules that the base's names do not tell; the plan's inventory refuses what they leave out.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mergekit.architecture import ModelArchitecture, WeightInfo
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from transformers.core_model_loading import dot_natural_key

from mergekit_ram.errors import InputError
from mergekit_ram.models.architecture import all_names, architecture_of, weights_of
from mergekit_ram.models.checkpoints import Checkpoint, Source
from mergekit_ram.models.names import PEFT_LAYERS, Names, StoredTensor
from mergekit_ram.models.transformers_layout import Place, TransformersLayout
from mergekit_ram.text import some

ARCHITECTURE_REMEDY = (
    "All models must be of one architecture and size, with the base that the agents were trained "
    "from as `base_model:`."
)


@dataclass(frozen=True)
class Naming:
    """The places in a checkpoint of a plan's tensors.

    Attributes:
        stored: where the checkpoint holds every tensor, by its name in the plan.
        wrappers: prefixes that were taken off.
    """

    stored: Mapping[str, Source]
    wrappers: tuple[str, ...]


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
        InputError: tensors that transformers needs are missing from the base, a model has
            nothing to do with it, or holds trained tensors that a merge would lose.
    """
    by_base = _Models(base, checkpoints, layout).by_base(base_config)
    if config.models or definition is None:
        return by_base
    planned = all_names(weights_of(definition, base_config))
    models = _Models(base, checkpoints, layout, planned)
    knows_modules = by_base.architecture.modules.keys() >= {*(config.modules or ())}
    if knows_modules and not models.are_all_planned:
        return by_base
    return models.by_definition(definition)


class _Models:
    """The tensors of all checkpoints by their names in a loaded model.

    Args:
        base: the model whose tensors make the output.
        checkpoints: of all models.
        layout: of the base in transformers; None where it cannot be built.
        planned: names that the plan gives to weights, before those of the base.
    """

    def __init__(
        self,
        base: ModelReference,
        checkpoints: Mapping[ModelReference, Checkpoint],
        layout: TransformersLayout | None,
        planned: Collection[str] = (),
    ):
        self._base, self._layout = base, layout
        self._checkpoints = checkpoints
        names = {model: [*c.headers, *c.promised] for model, c in checkpoints.items()}
        every = Names(layout, itertools.chain(planned, *names.values()))
        self._tensors = {model: every.by_key(own) for model, own in names.items()}
        own = self._tensors[base]
        # Without a layout a name that looks like a wrapper may be that of a module.
        is_wrapped = layout is not None or all(tensor.wrappers for tensor in own.values())
        self._names = {key: t.name if is_wrapped else t.stored for key, t in own.items()}
        self.are_all_planned = {*self._names.values()} <= {*planned}
        self._names |= {every.tensors[name].place.key: name for name in sorted(planned)}
        self._packed: dict[str, list[StoredTensor]] = defaultdict(list)
        for _, tensor in sorted(own.items(), key=lambda item: dot_natural_key(item[0])):
            for target in tensor.place.targets - {tensor.place.key}:
                self._packed[target].append(tensor)
        modules = {_module(key) for key in (layout.keys if layout else own)}
        self._modules = modules.difference(*map(_parents, modules), {""})
        for model in checkpoints:
            self._check_attached(model)

    def by_definition(self, definition: ModelArchitecture) -> NamedModels:
        """mergekit's definition, whatever it leaves out."""
        return NamedModels(definition, self._namings(set(self._names.values())))

    def by_base(self, config: Any) -> NamedModels:
        """The architecture of the tensors that the base stores."""
        headers = self._checkpoints[self._base].headers
        held = {key: t for key, t in self._tensors[self._base].items() if t.stored in headers}
        self._check_base(held)
        # Weights that the base takes from others and that an agent stores.
        tied = self._layout.tied if self._layout else {}
        heads = {k: t for own in self._tensors.values() for k, t in own.items() if k in tied}
        places = {self._names.get(key, key): t.place for key, t in (heads | held).items()}
        weights = [self._weight(name, places) for name in places]
        architecture = architecture_of(weights, config, config.architectures[0])
        return NamedModels(architecture, self._namings(places.keys()))

    def _check_base(self, held: Mapping[str, StoredTensor]) -> None:
        """A tensor that an index lists and no file holds is missed where it is needed."""
        places = (tensor.place for tensor in held.values())
        is_known = self._layout and not self._checkpoints[self._base].quantisation
        missing = self._layout.missing(places) if self._layout and is_known else set()
        promised = self._checkpoints[self._base].promised
        for key, tensor in self._tensors[self._base].items():
            if key not in held and (not self._layout or tensor.place.targets & missing):
                raise promised[tensor.stored]
        if missing:
            raise InputError(
                f"model {self._base}: tensor {min(missing)} is missing, and the architecture "
                f"requires it. {ARCHITECTURE_REMEDY}"
            )

    def _weight(self, name: str, places: Mapping[str, Place]) -> WeightInfo:
        if self._layout is None:
            return WeightInfo(name=name, optional=True)
        place = places[name]
        source = self._layout.tied.get(place.key)
        tied = sorted(n for n, other in places.items() if other.key == source) if source else []
        return WeightInfo(
            name=name,
            optional=bool(source) or self._layout.required.isdisjoint(place.targets),
            vocabulary_axis=self._layout.vocabulary.get(place.key),
            tied_names=tuple(tied) or None,
        )

    def _namings(self, planned: Collection[str]) -> dict[ModelReference, Naming]:
        """The names of all models, each of which has something to do with the plan."""
        wanted, namings = set(planned), {}
        for model, own in self._tensors.items():
            headers = self._checkpoints[model].headers
            stored: dict[str, Source] = {}
            for key, tensor in own.items():
                if key not in self._names and self._is_passed_over(tensor):
                    continue
                if key in self._packed and key not in self._names and tensor.stored in headers:
                    stored |= self._taken_apart(model, tensor)
                else:
                    stored[self._names.get(key, key)] = Source(tensor.stored)
            floating = {
                name
                for name, source in stored.items()
                if source.name in headers and headers[source.name].dtype.is_floating_point
            }
            if floating and not floating & wanted:
                raise InputError(
                    f"model {model}: none of its {len(floating)} tensors has a name of the base's: "
                    f"it has {some(sorted(floating))}, the base {some(sorted(wanted))}. "
                    f"{_suggestion(floating, wanted)}"
                )
            wrappers = {wrapper for tensor in own.values() for wrapper in tensor.wrappers}
            namings[model] = Naming(stored, tuple(sorted(wrappers)))
        return namings

    def _is_passed_over(self, tensor: StoredTensor) -> bool:
        """Whether transformers has no use for a tensor; the base's are kept all the same."""
        layout, is_loaded = self._layout, bool(tensor.place.targets)
        return layout is not None and not is_loaded and layout.is_ignored(tensor.name)

    def _taken_apart(self, model: ModelReference, packed: StoredTensor) -> dict[str, Source]:
        """Where an agent's packed experts hold those that the base stores one by one.

        Raises:
            InputError: they are packed in another way.
        """
        headers = self._checkpoints[self._base].headers
        parts: dict[int | None, list[StoredTensor]] = defaultdict(list)
        for piece in self._packed[packed.place.key]:
            parts[piece.place.part].append(piece)
        found: dict[str, Source] = {}
        row = 0
        for _, matrices in sorted(parts.items(), key=lambda item: str(item[0])):
            height, *columns = headers[matrices[0].stored].shape
            found |= {
                self._names[piece.place.key]: Source(packed.stored, number, row, row + height)
                for number, piece in enumerate(matrices)
            }
            row += height
        shape = self._checkpoints[model].headers[packed.stored].shape
        if None in parts or shape != (len(matrices), row, *columns):
            raise InputError(
                f"model {model}: tensor {packed.stored} is in another layout than the base's "
                f"{some([piece.stored for piece in matrices])}, and cannot be taken apart into it. "
                "Save this model as the base is saved (transformers' save_pretrained)."
            )
        return found

    def _check_attached(self, model: ModelReference) -> None:
        """Refuse tensors inside of the base's modules that no weight is, such as an adapter's.

        A merge would leave them out, and the modules would not do what was trained.
        """
        headers, own = self._checkpoints[model].headers, self._tensors[model]
        if self._checkpoints[model].quantisation or self._checkpoints[model].packed:
            return  # Its weights have scales beside them, and the inventory speaks of their dtype.
        wrapped = {key for key, tensor in own.items() if {*PEFT_LAYERS} & {*tensor.wrappers}}
        modules = {*map(_module, wrapped)}
        merged: Collection[str] = ()
        if model != self._base:
            modules, merged = modules | self._modules, self._tensors[self._base]
        attached = [
            tensor.stored
            for key, tensor in own.items()
            if not (tensor.place.targets or key in wrapped or key in merged)
            and not modules.isdisjoint(_parents(key))
            and tensor.stored in headers
            and headers[tensor.stored].dtype.is_floating_point
        ]
        if attached:
            raise InputError(
                f"model {model}: its file holds tensors beside the weights of the base's modules "
                f"({some(sorted(attached))}), such as those of an adapter, and a merge would leave "
                "them out. Merge them into the weights before (PEFT's merge_and_unload) and save "
                "the result."
            )


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _parents(name: str) -> list[str]:
    """The names of all modules that a tensor lies in."""
    return [name[: dot.start()] for dot in re.finditer(r"\.", name)]


def _suggestion(names: set[str], planned: set[str]) -> str:
    for name in sorted(names):
        for parent in _parents(name):
            if name.removeprefix(f"{parent}.") in planned:
                return (
                    f"Without the prefix {parent}. they would fit: save the model without the "
                    "module around it, or rename its tensors."
                )
    return ARCHITECTURE_REMEDY
