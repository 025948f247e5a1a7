"""Where in a model a tensor sits, by its name.

``model.layers.3.mlp.up_proj.weight`` lies in layer 3 of the stack ``model.layers``, in the module
``mlp.up_proj``. A model may have several stacks, one of a vision tower for instance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_IN_LAYER = re.compile(r"(?:(?P<stack>.*?)\.)?(?P<number>\d+)\.(?P<module>.+)")
_EXPERT = re.compile(r"\bexperts\.\d+\b")
_KIND = re.compile(r"\.(weight|bias)$")


@dataclass(frozen=True)
class Place:
    """Where a tensor belongs; without a number it lies outside all layers."""

    stack: str
    number: int | None
    module: str

    @classmethod
    def of(cls, name: str) -> Place:
        """The place that a tensor's name tells. All experts of a layer are one module."""
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
