"""Keys of a recipe that stand where mergekit does not look for them, and drops without a word."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import yaml
from mergekit.common import dtype_from_name
from mergekit.config import (
    ConditionalParameter,
    InputModelDefinition,
    InputSliceDefinition,
    MergeConfiguration,
    OutputModuleDefinition,
    OutputSliceDefinition,
)
from mergekit.merge_methods.base import MergeMethodSpec
from pydantic import BaseModel

from mergekit_ram.errors import InputError

LOG = logging.getLogger("mergekit_ram")

DTYPES = ("bfloat16", "float16", "float32", "float64")
SHORT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
}


@dataclass(frozen=True)
class Level:
    """A kind of section of a recipe: its class in mergekit, and what its sections hold."""

    name: str
    known: type[BaseModel]
    inner: Mapping[str, Level]

    @property
    def is_of_one_model(self) -> bool:
        return "model" in self.known.model_fields

    def every(self) -> Iterator[Level]:
        """This one and all that it can hold."""
        yield self
        for level in self.inner.values():
            yield from level.every()


_MODEL = Level("model", InputModelDefinition, {})
_SLICE = Level(
    "slice", OutputSliceDefinition, {"sources": Level("source", InputSliceDefinition, {})}
)
_MODULE = Level("module", OutputModuleDefinition, {"models": _MODEL, "slices": _SLICE})
RECIPE = Level(
    "recipe", MergeConfiguration, {"models": _MODEL, "slices": _SLICE, "modules": _MODULE}
)


def warn_about_places(recipe: Any, spec: MergeMethodSpec, top: Level = RECIPE) -> None:
    """Warn of every key that has no effect where it stands, with the place where it would.

    Args:
        recipe: what the YAML file holds, as text or as read from it.
        spec: of the merge method.
        top: what the command that reads it knows.
    """
    if isinstance(recipe, str):
        try:
            recipe = yaml.safe_load(recipe)
        except yaml.YAMLError:
            return
    for warning in dict.fromkeys(_misplaced(recipe, top, "", spec, [*top.every()])):
        LOG.warning("%s", warning)


class HasDtypes(Protocol):
    """A configuration of one of mergekit's commands."""

    @property
    def dtype(self) -> str | None: ...

    @property
    def out_dtype(self) -> str | None: ...


def check_dtypes(config: HasDtypes) -> None:
    """Refuse a dtype that mergekit does not know before anything is opened.

    Raises:
        InputError: it names the key, the value and the dtypes that there are.
    """
    for key in ("dtype", "out_dtype"):
        check_dtype(f"{key}: ", getattr(config, key))


def check_dtype(key: str, value: str | None) -> None:
    """Refuse a dtype that mergekit does not know.

    Args:
        key: as it stands before the value.
        value: the dtype's name.

    Raises:
        InputError: it names the key, the value and the dtypes that there are.
    """
    try:
        dtype_from_name(value)
    except RuntimeError:
        meant = SHORT_DTYPES.get(str(value).lower()) or _close(str(value), DTYPES)
        hint = f" Did you mean {meant}?" if meant else ""
        raise InputError(
            f"`{key}{value}` is no dtype that mergekit knows; it knows {', '.join(DTYPES)}.{hint}"
        ) from None


def _misplaced(
    node: Any, level: Level, where: str, spec: MergeMethodSpec, levels: list[Level]
) -> Iterator[str]:
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        if key == "parameters":
            yield from _conditions(value)
        elif key in level.inner:
            inner = level.inner[key]
            for name, item in _items(value):
                yield from _misplaced(item, inner, _place(inner, item, name), spec, levels)
        elif key not in level.known.model_fields:
            remedy = _remedy(key, level, spec, levels)
            yield f"key '{key}' {where or 'at the top'} has no effect: {remedy}"


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"`{name}`", item) for name, item in value.items())
    elif isinstance(value, list):
        yield from ((f"{number}", item) for number, item in enumerate(value, start=1))


def _place(level: Level, item: Any, name: str) -> str:
    if level.is_of_one_model and isinstance(item, Mapping) and "model" in item:
        return f"beside `model: {item['model']}`"
    return f"in {level.name} {name}"


def _remedy(key: Any, level: Level, spec: MergeMethodSpec, levels: list[Level]) -> str:
    shared = [parameter.name for parameter in spec.shared_parameters]
    every = [parameter.name for parameter in spec.parameters]
    if key in every and key not in shared and level.is_of_one_model:
        return "write it under `parameters:` of that model"
    if key in every and key not in shared:
        return "write it under `parameters:` of a model, or of all of them at the top"
    if key in shared:
        has_slices = any(other.name == "slice" for other in levels)
        elsewhere = ", of a module, or of a slice" if has_slices else ""
        return f"write it under `parameters:` at the top{elsewhere}"
    homes = [other for other in levels if key in other.known.model_fields]
    if homes:
        is_top = homes[0] is levels[0]
        return "it belongs at the top" if is_top else f"it belongs in a {homes[0].name}"
    close = _close(str(key), [*level.known.model_fields, *every])
    if close:
        return f"did you mean '{close}'?"
    return f"{spec.name} does not know it; parameters stand under `parameters:`"


def _conditions(value: Any) -> Iterator[str]:
    """Keys beside ``value:`` and ``filter:``; a misspelt filter makes a setting one for all."""
    if isinstance(value, Mapping):
        for name, setting in value.items():
            for item in setting if isinstance(setting, list) else [setting]:
                if isinstance(item, Mapping):
                    for key in item.keys() - ConditionalParameter.model_fields.keys():
                        close = _close(str(key), list(ConditionalParameter.model_fields))
                        hint = f"did you mean '{close}'?" if close else "use `filter:`, `value:`"
                        yield f"key '{key}' in a setting of '{name}' has no effect: {hint}"


def _close(word: str, known: Any) -> str | None:
    return next(iter(difflib.get_close_matches(word, known, n=1)), None)
