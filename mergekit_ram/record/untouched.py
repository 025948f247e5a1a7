"""What no agent changed, where that means something: a layer, an expert, a whole kind of tensors.

That a bias or a norm of bfloat16 stays as it was is usual and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from mergekit_ram.record.layers import Place
from mergekit_ram.record.schema import TensorRecord

NOTEWORTHY_SHARE = 0.01
"""Of all parameters: a kind of tensors with fewer is too small to be news."""

_EXPERT = re.compile(r"\bexperts\.(\d+)\.")


def untouched_parts(tensors: Sequence[TensorRecord]) -> Iterator[str]:
    """Names of layers, experts and kinds of which no agent changed anything."""
    tensors = [tensor for tensor in tensors if tensor.numel]
    layers = _untouched(tensors, lambda tensor: _layer(tensor.name))
    yield from (f"layer {layer}" for layer in layers)
    rest = [tensor for tensor in tensors if _layer(tensor.name) not in layers]
    kinds = _untouched(rest, lambda tensor: _kind(tensor.name))
    least = NOTEWORTHY_SHARE * sum(tensor.numel for tensor in tensors)
    for kind, own in kinds.items():
        if sum(tensor.numel for tensor in own) >= least:
            yield kind
    rest = [tensor for tensor in rest if _kind(tensor.name) not in kinds]
    yield from _untouched(rest, lambda tensor: _expert(tensor.name))


def _untouched(
    tensors: Iterable[TensorRecord], part_of: Callable[[TensorRecord], str | None]
) -> dict[str, list[TensorRecord]]:
    """The parts of which no tensor changed, with their tensors."""
    parts: dict[str, list[TensorRecord]] = {}
    for tensor in tensors:
        part = part_of(tensor)
        if part is not None:
            parts.setdefault(part, []).append(tensor)
    return {part: own for part, own in parts.items() if not any(one.change for one in own)}


def _layer(name: str) -> str | None:
    place = Place.of(name)
    return None if place.number is None else place.layer


def _kind(name: str) -> str:
    place = Place.of(name)
    if place.number is None:
        return place.module
    return "every " + f"{place.stack}.*.{place.module}".lstrip(".")


def _expert(name: str) -> str | None:
    found = _EXPERT.search(name)
    return None if found is None else f"expert {found[1]} of {_layer(name)}"
