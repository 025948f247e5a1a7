"""Describes a model as transformers loads it: names, ties, vocabulary and sides of its matrices.

The model is built on the meta device from its configuration, without memory, weights or a network.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from mergekit.architecture.auto import infer_vocabulary_axes
from mergekit.common import get_auto_cls
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from transformers import conversion_mapping, core_model_loading

from mergekit_ram.errors import one_line
from mergekit_ram.kernels.matrices import Layout
from mergekit_ram.tensors import NO_MATRICES

LOG = logging.getLogger("mergekit_ram")

NEVER_LOADED = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")
"""Buffers in old checkpoints, which transformers computes itself for every model."""

INPUT_FIRST = frozenset(
    {
        "AriaGroupedExpertsGemm",
        "Conv1D",
        "CsmCodebooksHead",
        "GptOssExperts",
        "GroupedLinearLayer",
        "Llama4TextExperts",
        "RecurrentGemmaRglru",
    }
)
"""transformers' classes of modules whose weights are stored ``[…, in, out]``; packed experts of its
newer ones say so themselves."""

PACKING = (
    [core_model_loading.MergeModulelist],
    [core_model_loading.MergeModulelist, core_model_loading.Concatenate],
)
"""Operations that stack the matrices of experts, or those of each expert one below the other."""

EXPERT_AXES = 3

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Sides:
    """On which side the matrices of a model take their input, by the tensors' names.

    Args:
        found: by the parameters' names in the module, with the numbers of layers.
    """

    def __init__(self, found: Mapping[str, Layout]):
        self._by_name = {NUMBER.sub("*", name): layout for name, layout in found.items()}
        by_tail: dict[str, set[Layout]] = {}
        for pattern, layout in self._by_name.items():
            by_tail.setdefault(_tail(pattern), set()).add(layout)
        self._by_tail = {tail: next(iter(s)) for tail, s in by_tail.items() if len(s) == 1}

    def find(self, name: str) -> Layout | None:
        """The layout of a tensor; None where the modules do not tell.

        Checkpoints may call a tensor by another prefix than the module does; what follows the
        number of its layer is then enough, if it is one kind of tensor everywhere.
        """
        pattern = NUMBER.sub("*", name)
        return self._by_name.get(pattern) or self._by_tail.get(_tail(pattern))


@dataclass(frozen=True)
class Place:
    """Where a tensor of a checkpoint goes in a loaded model.

    Attributes:
        key: its name there, before tensors are packed or split.
        targets: the weights that it becomes, or becomes a part of; none where it is not loaded.
        part: of packed experts, such as the gates before the rest; None where they are not packed,
            or in a way that is not known.
    """

    key: str
    targets: frozenset[str]
    part: int | None = None


@dataclass(frozen=True)
class TransformersLayout:
    """A loaded model of one configuration.

    Attributes:
        keys: names of all weights and stored buffers.
        required: names of the weights that transformers would make up if they were not stored.
        tied: weights that are taken from another one where they are not stored, with that one.
        vocabulary: the axis along which tokens are numbered, for weights that have one.
        sides: of its matrices.
        ignored: patterns of stored names that transformers does not load, on purpose.
    """

    keys: frozenset[str]
    required: frozenset[str]
    tied: Mapping[str, str]
    vocabulary: Mapping[str, int]
    sides: Sides
    ignored: tuple[str, ...]
    _transforms: tuple[Any, ...] = field(repr=False)
    _prefix: str

    def places(self, stored: Iterable[str]) -> dict[str, Place]:
        """Where every tensor of a checkpoint goes."""
        names = sorted(stored, key=core_model_loading.dot_natural_key)
        renamed = self._renamed(names, converting=False)
        converted = self._renamed(names, converting=True)
        places = {}
        for name in names:
            (key, _, _), (made, converter, pattern) = renamed[name], converted[name]
            targets, part = {made}, None
            if converter is not None:
                first, *others = converter.target_patterns
                targets |= {made.replace(first, other) for other in others}
                if [type(operation) for operation in converter.operations] in PACKING:
                    part = converter.source_patterns.index(pattern)
            places[name] = Place(key, self.keys & targets, part)
        return places

    def missing(self, places: Iterable[Place]) -> set[str]:
        """Required weights that no tensor of a checkpoint becomes."""
        found = set().union(*(place.targets for place in places))
        for pair in self.tied.items():
            if not found.isdisjoint(pair):
                found |= {*pair}
        return set(self.required - found)

    def is_ignored(self, name: str) -> bool:
        """Whether transformers passes over a stored tensor of that name on purpose."""
        return any(re.search(pattern, name) for pattern in self.ignored)

    def _renamed(
        self, names: Iterable[str], *, converting: bool
    ) -> dict[str, tuple[str, Any, str | None]]:
        """Names in the loaded model, each with its converter and the pattern that it fits there."""
        # Some of transformers' rules count on seeing names in order, so they are new every time.
        transforms = copy.deepcopy(self._transforms)
        renamings = [t for t in transforms if isinstance(t, core_model_loading.WeightRenaming)]
        converters = [
            t
            for t in transforms
            if converting and isinstance(t, core_model_loading.WeightConverter)
        ]
        by_pattern = {p: converter for converter in converters for p in converter.source_patterns}
        meta = dict.fromkeys(self.keys, True)
        found = {}
        for name in names:
            key, pattern = core_model_loading.rename_source_key(
                name, renamings, converters, self._prefix, meta
            )
            if key not in meta and name in meta:
                key, pattern = name, None
            found[name] = (key, by_pattern.get(pattern or ""), pattern)
        return found


def is_computed(name: str) -> bool:
    """Whether a stored tensor is a buffer that transformers computes itself for every model."""
    return any(re.search(pattern, name) for pattern in NEVER_LOADED)


def layout_of(config: Any, *, trust_remote_code: bool = False) -> TransformersLayout | None:
    """The layout of the model that a configuration describes; None if it cannot be built."""
    try:
        model = build_without_memory(copy.deepcopy(config), trust_remote_code)
        optional = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        return TransformersLayout(
            keys=frozenset(model.state_dict()),
            required=frozenset(n for n in names if not any(re.search(p, n) for p in optional)),
            tied=dict(getattr(model, "all_tied_weights_keys", None) or {}),
            vocabulary=_vocabulary(model),
            sides=Sides(dict(_sides(model))),
            ignored=tuple(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()),
            _transforms=tuple(conversion_mapping.get_model_conversion_mapping(model)),
            _prefix=model.base_model_prefix,
        )
    except Exception as error:  # other people's code may be in it
        LOG.info("transformers cannot build this architecture: %s", one_line(error), exc_info=True)
        return None


def build_without_memory(config: Any, trust_remote_code: bool) -> Any:
    """The model of a configuration on the meta device."""
    (name,) = config.architectures
    own = getattr(transformers, name, None)
    # Not within transformers' no_init_weights, which is a switch of the whole process: two threads
    # that merge at once would leave it on.
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        if own is not None and not getattr(config, "auto_map", None):
            model = own(config)
        else:
            auto = get_auto_cls(name)
            model = auto.from_config(config, trust_remote_code=trust_remote_code)
        model.tie_weights()
    return model


def _vocabulary(model: Any) -> dict[str, int]:
    try:
        return infer_vocabulary_axes(model)
    except NotImplementedError:  # a model without tokens
        return {}


def _sides(model: torch.nn.Module) -> Iterator[tuple[str, Layout]]:
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            layout = _side(module, name, parameter.ndim)
            if layout is not None:
                yield f"{prefix}.{name}".lstrip("."), layout


def _side(module: torch.nn.Module, name: str, axes: int) -> Layout | None:
    """What a module tells of one of its parameters."""
    if axes < 2:
        return None
    if name.endswith(NO_MATRICES):
        return Layout(has_matrices=False)
    if isinstance(module, _ConvNd):
        return Layout(input_last=not isinstance(module, _ConvTransposeNd))
    is_transposed = getattr(module, "is_transposed", type(module).__name__ in INPUT_FIRST)
    if axes == EXPERT_AXES:
        return Layout(input_last=not is_transposed, packed=True)
    return Layout(input_last=not is_transposed) if axes == 2 and name == "weight" else None


def _tail(pattern: str) -> str:
    """What follows the number of a layer."""
    return pattern.rpartition("*.")[2]
