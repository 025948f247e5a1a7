"""A configuration of mergekit, read from its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml
from mergekit.config import MergeConfiguration
from pydantic import BaseModel, ValidationError

from mergekit_ram.errors import InputError, one_line

Model = TypeVar("Model", bound=BaseModel)

WHAT_FAILS = (
    OSError,
    ValueError,
    yaml.YAMLError,
    RuntimeError,
    LookupError,
    TypeError,
    AttributeError,
)
"""RuntimeError is mergekit's of a model's name that it cannot take apart, such as ``a+b+c``.

The last three are the YAML reader's of values that are not what their tags say.
"""

WAY_OUT = "Give the YAML file of a merge."


@dataclass(frozen=True)
class Recipe:
    """A configuration as text, and as mergekit understands it."""

    text: str
    config: MergeConfiguration


def read_recipe(path: str | Path, way_out: str = WAY_OUT) -> Recipe:
    """A configuration of any merge method.

    Args:
        path: of the YAML file.
        way_out: a sentence about what is to be given.

    Raises:
        InputError: the file cannot be read as one.
    """
    text, recipe = read_yaml(path, way_out)
    return Recipe(text, understood_as(MergeConfiguration, recipe, path, way_out))


def read_yaml(path: str | Path, way_out: str = WAY_OUT) -> tuple[str, object]:
    """The text of a YAML file, and what it holds.

    Raises:
        InputError: it is no YAML, or not in UTF-8.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        return text, yaml.safe_load(text)
    except WHAT_FAILS as error:
        raise _unreadable(path, error, way_out) from None


def understood_as(
    schema: type[Model], recipe: object, path: str | Path, way_out: str = WAY_OUT
) -> Model:
    """What a YAML file holds as one of mergekit's commands understands it.

    Raises:
        InputError: the command cannot.
    """
    try:
        return schema.model_validate(recipe)
    except WHAT_FAILS as error:
        raise _unreadable(path, error, way_out) from None


def _unreadable(path: str | Path, error: Exception, way_out: str) -> InputError:
    return InputError(
        f"{path} cannot be read as a configuration of mergekit: {_reason(error)}. {way_out}"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return f"it is not in UTF-8 (byte 0x{byte:02x} at {error.start}); save it as UTF-8"
    if not isinstance(error, ValidationError):
        return one_line(error)
    found = []
    for problem in error.errors():
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]]
        found.append(f"{''.join(parts).lstrip('.') or 'the whole'}: {problem['msg']}")
    return "; ".join(found)
