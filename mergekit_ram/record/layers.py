"""The layers and modules of a record's tensors, by their names, and what changed in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mergekit_ram.record.schema import LayerRecord, Setting, TensorRecord

_IN_LAYER = re.compile(r"(?:(?P<stack>.*?)\.)?(?P<number>\d+)\.(?P<module>.+)")
_EXPERT = re.compile(r"\bexperts\.(\d+)\b")
_KIND = re.compile(r"\.(weight|bias)$")

NOTEWORTHY_SHARE = 0.01
"""Of all parameters: a kind of tensors with fewer is too small to be news."""


@dataclass(frozen=True)
class Place:
    """Where a tensor belongs in a model; without a number it is outside of all layers.

    ``model.layers.3.mlp.up_proj.weight`` is in layer 3 of the stack ``model.layers``, in the
    module ``mlp.up_proj``. A model may have several stacks, for instance that of a vision tower.
    """

    stack: str
    number: int | None
    module: str

    @classmethod
    def of(cls, name: str) -> Place:
        """The place of a tensor, by its name. All experts of a layer are one module."""
        found = _IN_LAYER.fullmatch(name)
        if found is None:
            return cls("", None, _KIND.sub("", name))
        module = _EXPERT.sub("experts", _KIND.sub("", found["module"]))
        return cls(found["stack"] or "", int(found["number"]), module)

    @property
    def layer(self) -> str:
        """The layer's name; outside of the layers a module stands for itself."""
        if self.number is None:
            return self.module
        return f"{self.stack}.{self.number}".lstrip(".")


def different(value: Setting | None) -> tuple[float, ...]:
    """The different values of a setting, in ascending order."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def setting(values: Iterable[float]) -> Setting:
    """A number if all are the same, else the different ones."""
    found = tuple(sorted(set(values)))
    return found[0] if len(found) == 1 else found


def layer_records(tensors: Sequence[TensorRecord]) -> tuple[LayerRecord, ...]:
    """The change of every layer, in the order of the tensors."""
    layers: dict[str, list[TensorRecord]] = {}
    for tensor in tensors:
        layers.setdefault(Place.of(tensor.name).layer, []).append(tensor)
    records = []
    for name, own in layers.items():
        numel = sum(tensor.numel for tensor in own)
        changed = sum(tensor.change * tensor.numel for tensor in own)
        records.append(LayerRecord(name=name, numel=numel, change=changed / max(1, numel)))
    return tuple(records)


def untouched_parts(tensors: Iterable[TensorRecord]) -> Iterator[str]:
    """Names of layers, kinds of tensors and experts of which no agent changed anything."""
    rest = [tensor for tensor in tensors if tensor.numel]
    least = NOTEWORTHY_SHARE * sum(tensor.numel for tensor in rest)
    for part_of in (_layer, _kind, _expert):
        parts: dict[str | None, list[TensorRecord]] = {}
        for tensor in rest:
            parts.setdefault(part_of(tensor.name), []).append(tensor)
        changed = {part for part, own in parts.items() if any(one.change for one in own)}
        for part, own in parts.items():
            is_news = part_of is not _kind or sum(tensor.numel for tensor in own) >= least
            if part is not None and part not in changed and is_news:
                yield part
        rest = [tensor for tensor in rest if part_of(tensor.name) in {None, *changed}]


def _layer(name: str) -> str | None:
    place = Place.of(name)
    return None if place.number is None else f"layer {place.layer}"


def _kind(name: str) -> str:
    place = Place.of(name)
    if place.number is None:
        return place.module
    return "every " + f"{place.stack}.*.{place.module}".lstrip(".")


def _expert(name: str) -> str | None:
    found = _EXPERT.search(name)
    return None if found is None else f"expert {found[1]} of {Place.of(name).layer}"
