"""Reads a recipe, mergekit's YAML of a merge, and names what in it has no effect or no meaning."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import torch
import yaml
from mergekit.common import dtype_from_name
from mergekit.config import MergeConfiguration
from mergekit.io.loader import TensorLoader
from mergekit.merge_methods.base import MergeMethodSpec
from mergekit.options import MergeOptions
from pydantic import BaseModel, ValidationError

from mergekit_ram.errors import InputError, did_you_mean, one_line

LOG = logging.getLogger("mergekit_ram")

OPTIONS_FOR_GPUS = ("gpu_rich", "multi_gpu", "cuda")
DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class Recipe:
    """A recipe as text, and as mergekit understands it."""

    text: str
    config: MergeConfiguration


def read_recipe(path: str | Path, remedy: str = "Give the YAML file of a merge.") -> Recipe:
    """Read a recipe of any merge method.

    Args:
        path: of the YAML file.
        remedy: a sentence that says what to give instead.

    Raises:
        InputError: the file cannot be read, is no YAML in UTF-8, or no such configuration.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        return Recipe(text, MergeConfiguration.model_validate(yaml.safe_load(text)))
    except Exception as error:  # the YAML reader and mergekit's validators fail in many ways
        raise InputError(
            f"{path} cannot be read as a configuration of mergekit: {_reason(error)}. {remedy}"
        ) from None


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return one_line(error)
    found = []
    for problem in error.errors():
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]]
        found.append(f"{''.join(parts).lstrip('.') or 'the whole'}: {problem['msg']}")
    return "; ".join(found)


def check_settings(config: Any, options: MergeOptions) -> None:
    """Refuse dtypes that mergekit does not know, and options that this machine cannot serve.

    Raises:
        InputError: it names the key or the option.
    """
    check_dtype("dtype: ", config.dtype)
    check_dtype("out_dtype: ", config.out_dtype)
    check_dtype("--lora-merge-dtype ", options.lora_merge_dtype)
    wanted = [name for name in OPTIONS_FOR_GPUS if getattr(options, name)]
    if torch.device(options.device or "cpu").type not in ("cpu", "meta"):
        wanted.append(f"device {options.device}")
    if wanted and not torch.accelerator.is_available():
        raise InputError(
            f"--{wanted[0].replace('_', '-')}: torch {torch.__version__} finds no GPU on this "
            "machine. Leave the option out, or install a torch for its GPU."
        )
    if options.lazy_unpickle:
        _check_lazy_unpickle()


def _check_lazy_unpickle() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/probe.bin"
        torch.save({"probe": torch.ones(2)}, path)
        try:
            TensorLoader.get(path, use_lazy_unpickle=True).get_tensor("probe")
        except Exception as error:  # mergekit reads pickles of some versions of torch alone
            raise InputError(
                f"--lazy-unpickle: mergekit cannot read .bin files lazily with torch "
                f"{torch.__version__}: {one_line(error)}. Leave the option out."
            ) from None


def check_dtype(key: str, value: str | None) -> None:
    """Refuse a dtype that mergekit does not know, before anything is opened.

    Args:
        key: as it stands before the value.
        value: the dtype's name.

    Raises:
        InputError: it names the key, the value and the dtypes that there are.
    """
    try:
        dtype_from_name(value)
    except RuntimeError:
        hint = did_you_mean(str(value), DTYPES) or "see torch's names of dtypes."
        raise InputError(
            f"`{key}{value}` is no dtype that mergekit knows, as {', '.join(DTYPES)} are: {hint}"
        ) from None


def misplaced_keys(
    data: Any, spec: MergeMethodSpec, schema: type[BaseModel] = MergeConfiguration
) -> Iterator[str]:
    """A line on every key that has no effect where it stands; mergekit drops it without a word.

    Args:
        data: the recipe as YAML, or its text.
        spec: of the merge method.
        schema: the command's class of configurations.
    """
    if isinstance(data, str):
        with suppress(yaml.YAMLError):
            data = yaml.safe_load(data)
    for section in _sections(data, schema, "at the top"):
        for key in section.values:
            if key not in section.schema.model_fields:
                remedy = _remedy(key, section, spec, schema)
                yield f"key '{key}' {section.place} has no effect: {remedy}"


def unknown_parameters(config: BaseModel, spec: MergeMethodSpec) -> list[str]:
    """A line on every parameter that the method does not know, or not there."""
    known = [parameter.name for parameter in spec.parameters]
    shared = [parameter.name for parameter in spec.shared_parameters]
    reasons: dict[str, str] = {}
    for section in _sections(config.model_dump(), type(config), "at the top"):
        for name in section.values.get("parameters") or ():
            if name not in known:
                hint = did_you_mean(name, known) or f"it knows {', '.join(known)}."
                reasons[name] = f": {spec.name} does not know it; {hint}"
            elif name in shared and section.is_of_model:
                reasons[name] = (
                    " under a model: it is one of the whole merge; write it under `parameters:` "
                    "at the top, of a module, or of a slice"
                )
    return [f"parameter '{name}' has no effect{reason}" for name, reason in reasons.items()]


@dataclass(frozen=True)
class _Section:
    """A table of a recipe, the class that mergekit reads it as, and where it stands."""

    values: Mapping[str, Any]
    schema: type[BaseModel]
    place: str

    @property
    def is_of_model(self) -> bool:
        return "model" in self.schema.model_fields


def _sections(value: Any, annotation: Any, place: str) -> Iterator[_Section]:
    """All tables of a recipe whose keys mergekit knows, by the annotations of its classes."""
    inner = get_args(annotation)
    if _is_schema(annotation) and isinstance(value, Mapping):
        if "model" in value and "model" in annotation.model_fields:
            place = f"beside `model: {value['model']}`"
        yield _Section(value, annotation, place)
        for key, field in annotation.model_fields.items():
            yield from _sections(value.get(key), field.annotation, f"in {key.removesuffix('s')}")
    elif get_origin(annotation) is list and isinstance(value, list):
        for number, item in enumerate(value, start=1):
            yield from _sections(item, inner[0], f"{place} {number}")
    elif get_origin(annotation) is dict and isinstance(value, Mapping):
        for name, item in value.items():
            yield from _sections(item, inner[1], f"{place} `{name}`")
    elif sum(map(_is_schema, inner)) < 2:  # else the value chooses its class
        for choice in inner:
            yield from _sections(value, choice, place)


def _homes(key: str, annotation: Any, place: str) -> Iterator[str]:
    """The places of a recipe where a key has an effect."""
    if _is_schema(annotation):
        if key in annotation.model_fields:
            yield place
        for name, field in annotation.model_fields.items():
            yield from _homes(key, field.annotation, f"in a {name.removesuffix('s')}")
    for inner in get_args(annotation):
        yield from _homes(key, inner, place)


def _is_schema(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _remedy(key: Any, section: _Section, spec: MergeMethodSpec, schema: type[BaseModel]) -> str:
    known = [parameter.name for parameter in spec.parameters]
    if key in [parameter.name for parameter in spec.shared_parameters]:
        return "write it under `parameters:` at the top"
    if key in known:
        whose = "that model" if section.is_of_model else "a model, or of all of them at the top"
        return f"write it under `parameters:` of {whose}"
    for home in _homes(key, schema, "at the top"):
        return f"it belongs {home}"
    return did_you_mean(str(key), [*section.schema.model_fields, *known]) or (
        f"{spec.name} does not know it; parameters stand under `parameters:`"
    )
