"""What decides the bytes of a merge, so that no two merges are mixed in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from pydantic import BaseModel

from mergekit_ram.errors import one_line
from mergekit_ram.record.contents import ModelRecord
from mergekit_ram.record.schema import Versions
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
        return first_difference(self._parts(), other._parts())

    def _parts(self) -> dict[str, object]:
        """All that decides, by the words that say it differs."""
        return {
            "another configuration": self.configuration,
            **{f"another --{name.replace('_', '-')}": at for name, at in self.options.items()},
            **{f"another version of {package}": version for package, version in self.versions},
            **by_model(self.models),
            **{f"another file {path}": state for path, state in self.inputs.items()},
            "other units of work": (self.format, self.units),
        }


def by_model(models: Iterable[ModelRecord]) -> dict[str, object]:
    """Files of weights, by the words that say they differ."""
    return {f"model {model.model} with other files": model for model in models}


def first_difference(was: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """The first name under which two mappings differ."""
    return next((name for name in {**was, **now} if was.get(name) != now.get(name)), None)


def input_states(config: MergeConfiguration, plan: PlannedUnits) -> dict[str, str]:
    """Digests of all files of models, adapters and tokenizers on this machine, and of records."""
    folders = {Path(folder) for folder in named_folders(config)}
    for loads in plan.recorder.output.loads.values():
        # A merged adapter follows from the rest, and every machine may have its own.
        merged = (load for load in loads if load.reference is None or not load.reference.lora)
        folders |= {Path(load.index.base_path) for load in merged}
    found = {Path(plan.counter.counts_from)} if plan.counter.counts_from else set()
    for folder in folders:
        found |= {*folder.glob("*"), *folder.glob("additional_chat_templates/*.jinja")}
    return {str(path): _state(path) for path in sorted(found) if path.is_file()}


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
