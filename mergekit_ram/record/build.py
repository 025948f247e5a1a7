"""Compute the fields of a record that follow from the counts of its tensors.

Recording computes them, and reading a record computes them again to check it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from mergekit_ram.overlap import AgentOverlap
from mergekit_ram.record.schema import LayerRecord, Setting, TensorRecord

_IN_LAYER = re.compile(r"(?:(?P<stack>.*?)\.)?(?P<number>\d+)\.(?P<module>.+)")
_EXPERT = re.compile(r"\bexperts\.\d+\b")
_KIND = re.compile(r"\.(weight|bias)$")


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


def counted_fields(kind: type[BaseModel], agent: AgentOverlap) -> dict[str, Any]:
    """The fields of an agent's record that come from its counts.

    Args:
        kind: the record, :class:`AgentRecord` or :class:`ThresholdAgent`.
        agent: its counts in the whole model.
    """
    fields = {
        "active": agent.active,
        "shared": agent.shared,
        "unique": agent.unique,
        "density": agent.density,
        "overlap_degree": agent.overlap_degree,
        "overlap_share": agent.overlap_share,
        "unique_share": agent.unique / agent.active if agent.active else None,
        "overlap_unique_ratio": agent.finite_ratio,
    }
    return {name: value for name, value in fields.items() if name in kind.model_fields}


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
