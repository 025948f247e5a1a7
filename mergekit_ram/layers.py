"""Where in a model a tensor sits, by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = re.compile(r"\.(\d+)(?=\.)")
PARAMETER_KINDS = (".weight", ".bias")


@dataclass(frozen=True)
class Place:
    """A layer and a module in it; ``number`` is None outside of layers."""

    stack: str
    number: int | None
    module: str

    @property
    def title(self) -> str:
        """The layer's name, or the tensor's where it is in none."""
        return self.module if self.number is None else f"{self.stack}.{self.number}"


def layer_of(name: str) -> Place:
    """Take ``model.layers.3.mlp.up_proj.weight`` apart; later numbers, of experts, are dropped."""
    found = NUMBER.search(name)
    if found is None:
        return Place("", None, _without_kind(name))
    rest = NUMBER.sub("", name[found.end() :]).lstrip(".")
    return Place(name[: found.start()], int(found.group(1)), _without_kind(rest))


def _without_kind(name: str) -> str:
    for kind in PARAMETER_KINDS:
        if name.endswith(kind) and name != kind:
            return name[: -len(kind)]
    return name
