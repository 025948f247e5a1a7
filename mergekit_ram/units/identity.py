"""What decides the bytes of a merge, so that no two merges are mixed in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from mergekit.options import MergeOptions
from pydantic import BaseModel

from mergekit_ram.errors import one_line
from mergekit_ram.record.merge import versions
from mergekit_ram.record.schema import ModelRecord, Versions
from mergekit_ram.units.cut import PlannedUnits, Unit

# mergekit's options that change what is written.
DECIDING_OPTIONS = (
    "allow_crimes",
    "device",
    "lora_merge_dtype",
    "out_shard_size",
    "safe_serialization",
    "unsafe_truncate_embeddings",
)

# Bytes of a file up to which all of it is read: configurations, tokenizers, code, records.
# Larger ones are weights, of which the plan's models have samples.
READ_WHOLE = 64_000_000


class Manifest(BaseModel, frozen=True):
    """A plan as far as it decides the bytes of the output.

    Args:
        configuration: the YAML's text.
        options: of mergekit that change what is written, by name.
        models: their files of weights.
        inputs: a digest of every file that may be read, or size and time of a large one, by path.
        versions: of the packages that compute.
        units: of work.
    """

    format: int = 2
    configuration: str
    options: dict[str, Any]
    models: tuple[ModelRecord, ...]
    inputs: dict[str, str]
    versions: Versions
    units: tuple[Unit, ...]

    @classmethod
    def of(
        cls,
        configuration: str,
        config: MergeConfiguration,
        options: MergeOptions,
        plan: PlannedUnits,
    ) -> Manifest:
        """Look at all that a planned merge reads."""
        return cls(
            configuration=configuration,
            options={name: getattr(options, name) for name in DECIDING_OPTIONS},
            models=plan.recorder.models,
            inputs={str(path): _state(path) for path in sorted(_inputs(config, plan))},
            versions=versions(),
            units=plan.units,
        )

    @property
    def ending(self) -> str:
        """Of the names of shards."""
        return "safetensors" if self.options.get("safe_serialization") else "bin"

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that stand for the plan."""
        return digest_of_text(self.model_dump_json())

    def differs_from(self, other: Manifest) -> str | None:
        """The first thing in which two plans differ, in words."""
        if self.configuration != other.configuration:
            return "another configuration"
        for name in sorted(self.options.keys() | other.options.keys()):
            if self.options.get(name) != other.options.get(name):
                return f"--{name.replace('_', '-')} {other.options.get(name)}"
        if self.versions != other.versions:
            return f"other versions ({other.versions!r})"
        was = {model.model: model for model in self.models}
        for model in other.models:
            if was.get(model.model) != model:
                return f"model {model.model}, whose files have changed"
        for path in sorted(self.inputs.keys() | other.inputs.keys()):
            if self.inputs.get(path) != other.inputs.get(path):
                return f"another file {path}"
        return None if self == other else "other units of work"


def _inputs(config: MergeConfiguration, plan: PlannedUnits) -> set[Path]:
    """Files of all models, adapters and tokenizers that are on this machine, and of records."""
    folders = {Path(folder) for folder in named_folders(config)}
    for loads in plan.recorder.output.loads.values():
        # A merged adapter follows from the rest, and every machine may have its own.
        merged = (load for load in loads if load.reference is None or not load.reference.lora)
        folders |= {Path(load.index.base_path) for load in merged}
    found = {Path(plan.counter.counts_from)} if plan.counter.counts_from else set()
    for folder in folders:
        found |= {*folder.glob("*"), *folder.glob("additional_chat_templates/*.jinja")}
    return {path for path in found if path.is_file()}


def named_folders(config: MergeConfiguration) -> list[str]:
    """Folders, or names on a hub, of all models, adapters and tokenizers of a configuration."""
    references = _references(config)
    return [part.path for model in references for part in (model.model, model.lora) if part]


def _references(value: object) -> Iterator[ModelReference]:
    """All models that any part of a configuration names."""
    if isinstance(value, ModelReference):
        yield value
        return
    parts: Iterable[object] = ()
    if isinstance(value, BaseModel | dict):
        parts = dict(value).values()
    elif isinstance(value, list | tuple):
        parts = value
    for part in parts:
        yield from _references(part)


def _state(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > READ_WHOLE:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError as error:
        return one_line(error)  # which a merge that reads it says too


def digest_of_text(text: str) -> str:
    """Sixteen hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(text.encode(errors="surrogatepass"))
