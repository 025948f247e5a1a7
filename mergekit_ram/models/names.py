"""Finds out under which names a loaded model has the tensors of a checkpoint.

Trainers leave prefixes in names, and transformers has renamed modules since a checkpoint was
written. Two tensors are the same weight if transformers loads them as the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mergekit_ram.models.transformers_layout import Place, TransformersLayout, is_computed

PEFT_LAYERS = ("base_layer.", "original_module.")
"""Left by PEFT around a layer that an adapter changes, or has a copy of."""

WRAPPERS_ANYWHERE = (
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    *PEFT_LAYERS,
)
"""Left by torch.compile, FSDP, activation checkpointing and PEFT around modules of any depth."""

WRAPPERS_IN_FRONT = ("module.", "_forward_module.", "base_model.model.", "pretrained_model.")
"""Left around a whole model: by DDP and DeepSpeed, Lightning, PEFT, TRL's value heads."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint.

    Attributes:
        stored: its name there.
        name: the same without wrappers.
        wrappers: that were taken off.
        place: in a loaded model.
    """

    stored: str
    name: str
    wrappers: tuple[str, ...]
    place: Place


def unwrapped(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A name, and what is left of it when more and more wrappers are taken off, with those.

    >>> [name for name, _ in unwrapped("module._orig_mod.lm_head.weight")]
    ['module._orig_mod.lm_head.weight', 'module.lm_head.weight', 'lm_head.weight']
    """
    yield name, ()
    taken: tuple[str, ...] = ()
    for wrapper in WRAPPERS_ANYWHERE:
        if f".{wrapper}" in f".{name}":
            name, taken = f".{name}".replace(f".{wrapper}", ".")[1:], (*taken, wrapper)
            yield name, taken
    while any(name.startswith(wrapper) for wrapper in WRAPPERS_IN_FRONT):
        wrapper = next(w for w in WRAPPERS_IN_FRONT if name.startswith(w))
        name, taken = name.removeprefix(wrapper), (*taken, wrapper)
        yield name, taken


class Names:
    """The names of stored tensors in a loaded model.

    Args:
        layout: of the model in transformers; None where it cannot be built.
        names: of all tensors.

    Attributes:
        tensors: by their stored names.
    """

    def __init__(self, layout: TransformersLayout | None, names: Iterable[str]):
        variants = {name: list(unwrapped(name)) for name in names}
        every = {variant for own in variants.values() for variant, _ in own}
        places = layout.places(every) if layout else {}
        self._layout = layout
        self.tensors = {name: _tensor(name, own, places) for name, own in variants.items()}

    def by_key(self, names: Iterable[str]) -> dict[str, StoredTensor]:
        """A model's tensors by their names in a loaded model, those with the fewest wrappers first.

        A second one of the same name there keeps its own. A tied weight that is stored without its
        source is the source.
        """
        found: dict[str, StoredTensor] = {}
        tensors = [self.tensors[name] for name in sorted(names)]
        for tensor in sorted(tensors, key=lambda tensor: len(tensor.wrappers)):
            is_loaded = bool(tensor.place.targets)
            if is_loaded or self._layout is None or not is_computed(tensor.name):
                key = tensor.place.key
                found[tensor.stored if key in found else key] = tensor
        for alias, source in sorted(self._layout.tied.items() if self._layout else ()):
            if alias in found and source not in found:
                place = Place(source, frozenset({source}))
                found[source] = replace(found.pop(alias), name=source, place=place)
        return found


def _tensor(
    name: str, variants: Sequence[tuple[str, tuple[str, ...]]], places: Mapping[str, Place]
) -> StoredTensor:
    """A tensor without as many wrappers as transformers needs to load it; else without all."""
    for variant, wrappers in variants:
        if variant in places and places[variant].targets:
            return StoredTensor(name, variant, wrappers, places[variant])
    variant, wrappers = variants[-1]
    return StoredTensor(name, variant, wrappers, Place(variant, frozenset()))
