"""The plan of a merge by units: its numbered units of work, and all that decides their bytes.

A plan is cut into groups of tensors to count, then shards to write. The cut follows from the plan
alone, never from the number of workers, so that a number means the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import xxhash
from mergekit.common import ModelPath, ModelReference
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import SaveTensor
from mergekit.options import MergeOptions
from mergekit.tokenizer import PermutedVocabulary
from mergekit.tokenizer.truncate import TruncatedVocabulary
from pydantic import BaseModel

from mergekit_ram.errors import one_line
from mergekit_ram.models.groups import TensorSize
from mergekit_ram.record.contents import ModelRecord
from mergekit_ram.record.schema import Versions

# At most about so many: enough for workers to share out, few enough to be no burden.
COUNTING_UNITS = 64

# Bytes read; below this, starting a unit costs more than it saves.
SMALLEST_COUNTING_UNIT = 256_000_000

# Stands for the parameters of a tensor whose rows follow from a tokenizer.
ALIGNED = -1

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

# Files of a model's folder that a merge may read.
READ = ("*", "additional_chat_templates/*.jinja")

Kind = Literal["count", "shard"]


class Unit(BaseModel, frozen=True):
    """One piece of work, done whole or not at all.

    Args:
        number: counted from 0 over all units of a plan.
        kind: of work.
        tensors: names in the output, in the order in which they are merged.
        numels: their parameters; 0 of one that is copied, ``ALIGNED`` where not known before.
        read: bytes of all models' tensors.
        written: bytes of the merged ones; 0 of a unit that counts.
    """

    number: int
    kind: Kind
    tensors: tuple[str, ...]
    numels: tuple[int, ...]
    read: int
    written: int


def cut(
    saves: Mapping[str, SaveTensor],
    sizes: Mapping[str, TensorSize],
    counted: Iterable[str],
    shard_size: int,
) -> tuple[Unit, ...]:
    """Cut a plan of one of our methods into units, in the order of their numbers.

    Args:
        saves: the task that saves each tensor of the output, by name.
        sizes: by name; what no model holds is not there.
        counted: names of tensors to count first.
        shard_size: bytes of a shard, of which one tensor may be larger; 0 or less: no limit.
    """
    read = {name: sizes[name].read for name in counted if name in sizes}
    written = {name: sizes[name].written for name in saves if name in sizes}
    most_read = max(SMALLEST_COUNTING_UNIT, sum(read.values()) // COUNTING_UNITS)
    most_written = shard_size if shard_size > 0 else sum(written.values())
    pieces: list[tuple[Kind, list[str]]] = [("count", names) for names in _grouped(read, most_read)]
    pieces += [("shard", names) for names in _grouped(written, most_written)]
    return tuple(
        Unit(
            number=number,
            kind=kind,
            tensors=tuple(names),
            numels=tuple(ALIGNED if _is_aligned(saves[n]) else sizes[n].numel for n in names),
            read=sum(sizes[name].read for name in names),
            written=sum(sizes[name].written for name in names) if kind == "shard" else 0,
        )
        for number, (kind, names) in enumerate(pieces)
    )


def _is_aligned(save: SaveTensor) -> bool:
    gathering = getattr(save.tensor_task, "gather_tensors", None)
    return isinstance(gathering, PermutedVocabulary | TruncatedVocabulary)


def _grouped(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in groups of at most ``most`` bytes, or of one name."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size > room or not groups:
            groups.append([])
            room = most
        groups[-1].append(name)
        room -= size
    return groups


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

    format: int = 3
    configuration: str
    options: dict[str, Any]
    models: tuple[ModelRecord, ...]
    inputs: dict[str, str]
    versions: Versions
    units: tuple[Unit, ...]

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


def input_states(
    config: MergeConfiguration, options: MergeOptions, counts: str | None
) -> dict[str, str]:
    """States of all files of models, adapters and tokenizers, and of a record, by their names.

    Files of the hub have the same names on every machine.

    Args:
        config: that names them.
        options: of mergekit's commands.
        counts: the file of recorded counts.
    """
    found = {counts: Path(counts)} if counts else {}
    for part in named_parts(config):
        for folder in _folders_of(part, options):
            files = (path for kind in READ for path in folder.glob(kind))
            found |= {str(Path(str(part), path.relative_to(folder))): path for path in files}
    return {name: _state(path) for name, path in sorted(found.items()) if path.is_file()}


def named_parts(config: MergeConfiguration) -> list[ModelPath]:
    """Folders, or names on a hub, of all models, adapters and tokenizers of a configuration."""
    references = _references(config)
    return [part for model in references for part in (model.model, model.lora) if part]


def _references(value: object) -> list[ModelReference]:
    """All models that any part of a configuration names."""
    if isinstance(value, ModelReference):
        return [value]
    if isinstance(value, BaseModel | dict):
        value = list(dict(value).values())
    if not isinstance(value, list | tuple):
        return []
    return [reference for part in value for reference in _references(part)]


def _folders_of(part: ModelPath, options: MergeOptions) -> Iterator[Path]:
    """Where a model lies on this machine: its folder, or the caches of a model of the hub.

    transformers keeps configurations and tokenizers in its own cache, whatever the options say.
    """
    if Path(part.path).is_dir():
        yield Path(part.path)
        return
    for cache in (options.transformers_cache, None):
        with suppress(Exception):  # it is not there, in many ways
            yield Path(
                huggingface_hub.snapshot_download(
                    part.path, revision=part.revision, cache_dir=cache, local_files_only=True
                )
            )


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
