"""What transformers makes of a checkpoint: the names in a loaded model, and what it needs."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from mergekit.architecture.auto import infer_vocabulary_axes
from mergekit.common import get_auto_cls
from transformers import conversion_mapping, core_model_loading
from transformers.initialization import no_init_weights

from mergekit_ram.errors import one_line

LOG = logging.getLogger("mergekit_ram")

NEVER_LOADED = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")
"""Buffers in old checkpoints, which transformers computes itself for every model."""


@dataclass(frozen=True)
class Layout:
    """The names in a loaded model of one configuration.

    Attributes:
        keys: of all weights and stored buffers.
        parameters: of the weights alone.
        tied: those that are taken from another one where they are not stored, with that one.
        vocabulary: the axis along which tokens are numbered, for weights that have one.
        optional: patterns of names whose absence transformers does not mind.
        ignored: patterns of stored names that transformers does not load, on purpose.
    """

    keys: frozenset[str]
    parameters: frozenset[str]
    tied: Mapping[str, str]
    vocabulary: Mapping[str, int]
    optional: tuple[str, ...]
    ignored: tuple[str, ...]
    _transforms: tuple[Any, ...]
    _prefix: str

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """Checkpoint names with their names in the model, before tensors are packed or split."""
        return {name: key for name, (key, _) in self._renamed(stored, converting=False).items()}

    def loaded(self, stored: Iterable[str]) -> dict[str, frozenset[str]]:
        """Which weights of the model every tensor of a checkpoint becomes, a part of one too."""
        found = {}
        for name, (key, converter) in self._renamed(stored, converting=True).items():
            targets = {key}
            if converter is not None:
                first, *_ = converter.target_patterns
                targets |= {key.replace(first, other) for other in converter.target_patterns}
            found[name] = frozenset(targets & self.keys)
        return found

    def missing(self, stored: Iterable[str]) -> list[str]:
        """Weights that transformers would make up, since no tensor of a checkpoint becomes them."""
        found = set().union(*self.loaded(stored).values())
        for target, source in self.tied.items():
            if target in found or source in found:
                found |= {target, source}
        return sorted(
            key
            for key in self.parameters - found
            if not any(re.search(pattern, key) for pattern in self.optional)
        )

    def is_ignored(self, name: str) -> bool:
        """Whether transformers passes over a stored tensor of that name on purpose."""
        return any(re.search(pattern, name) for pattern in self.ignored)

    def _renamed(
        self, stored: Iterable[str], *, converting: bool
    ) -> dict[str, tuple[str, Any | None]]:
        # Some of transformers' rules count on seeing names in order, so they are new every time.
        transforms = copy.deepcopy(self._transforms)
        renamings = [t for t in transforms if isinstance(t, core_model_loading.WeightRenaming)]
        converters = [
            t
            for t in transforms
            if converting and isinstance(t, core_model_loading.WeightConverter)
        ]
        by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
        meta = dict.fromkeys(self.keys, True)
        found: dict[str, tuple[str, Any | None]] = {}
        for name in sorted(stored, key=core_model_loading.dot_natural_key):
            key, pattern = core_model_loading.rename_source_key(
                name, renamings, converters, self._prefix, meta
            )
            if key not in meta and name in meta:
                key, pattern = name, None
            found[name] = (key, by_pattern.get(pattern) if pattern else None)
        return found


def layout_of(config: Any, *, trust_remote_code: bool) -> Layout | None:
    """The layout of a model of this configuration; None where transformers cannot build it."""
    try:
        model = _build(copy.deepcopy(config), trust_remote_code)
        model.tie_weights()
        transforms = tuple(conversion_mapping.get_model_conversion_mapping(model))
        return Layout(
            keys=frozenset(model.state_dict()),
            parameters=frozenset(
                name for name, _ in model.named_parameters(remove_duplicate=False)
            ),
            tied=dict(getattr(model, "all_tied_weights_keys", None) or {}),
            vocabulary=_vocabulary(model),
            optional=tuple(getattr(model, "_keys_to_ignore_on_load_missing", None) or ()),
            ignored=(
                *NEVER_LOADED,
                *(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()),
            ),
            _transforms=transforms,
            _prefix=model.base_model_prefix,
        )
    except Exception as error:  # other people's code may be in it
        LOG.info("transformers cannot build this architecture: %s", one_line(error), exc_info=True)
        return None


def _build(config: Any, trust_remote_code: bool) -> Any:
    name = config.architectures[0]
    own = getattr(transformers, name, None)
    with torch.device("meta"), no_init_weights():
        if own is not None and not getattr(config, "auto_map", None):
            return own(config)
        return get_auto_cls(name).from_config(config, trust_remote_code=trust_remote_code)


def _vocabulary(model: Any) -> dict[str, int]:
    try:
        return infer_vocabulary_axes(model)
    except NotImplementedError:  # a model without tokens
        return {}
