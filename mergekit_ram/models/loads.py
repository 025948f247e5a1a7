"""Which tensors of which checkpoints a planned merge will load."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mergekit.common import ModelReference
from mergekit.graph import Task
from mergekit.io import ShardedTensorIndex
from mergekit.io.tasks import LoaderCache, LoadTensor
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import PermutedVocabulary

from mergekit_ram.errors import Note

RAW_LOADER_MODULE = "mergekit.scripts.merge_raw_pytorch"
"""Looked up, not imported: a process that has not imported it has none of its tasks."""


DIGEST_LENGTH = 16
"""Hexadecimal digits; two different plans agree by chance once in 2**64."""


@dataclass(frozen=True)
class Load:
    """One model's part in a merge, whichever of mergekit's tasks loads it."""

    model: str
    index: ShardedTensorIndex
    names: tuple[str, ...]
    dtype: str | None
    optional: bool
    reference: ModelReference | None = None


def loads_below(task: Task[Any]) -> Iterator[Load]:
    """The loading tasks below a gathering task."""
    raw = sys.modules.get(RAW_LOADER_MODULE)
    if isinstance(task, LoadTensor):
        names = (task.tensor, *(task.aliases or ()), *(task.tied_names or ()))
        index = LoaderCache().get(task.model).index
        yield Load(str(task.model), index, names, task.dtype, task.optional, task.model)
    elif raw is not None and isinstance(task, raw.SimpleLoadTensor):
        index = raw.SimpleLoaderCache().get(task.model).index
        yield Load(task.model, index, (task.tensor_name,), task.dtype, optional=True)
    else:
        for argument in task.arguments().values():
            yield from loads_below(argument)


PlannedLoads = dict[str, list[Load]]
"""What is loaded for each weight of the output."""


@dataclass(frozen=True)
class TensorSize:
    """Bytes of one weight of the output."""

    read: int
    """Of all models together."""
    written: int
    numel: int
    """Parameters of the base's; 0 of a tensor that is copied."""


@dataclass(frozen=True)
class PlannedOutput:
    """What a plan will read and write."""

    sizes: Mapping[str, TensorSize]
    """By weight, as far as a model holds it."""
    dtypes: tuple[str, ...]
    """Names of their dtypes."""
    loads: PlannedLoads
    notes: tuple[Note, ...] = ()
    """What there is to say about the models."""

    @property
    def size(self) -> int:
        """Bytes of all weights that are written."""
        return sum(size.written for size in self.sizes.values())


def loading_digest(merge: ExecuteMergeMethodTask, loads: Iterable[Load]) -> str:
    """What a merge loads, and how it is aligned and rounded before it is counted.

    Equal for the same tensors of the same models, wherever they are computed on.
    """
    gathering = merge.gather_tensors
    lines = [type(gathering).__name__, str(merge.base_model), str(merge.dtype)]
    lines += [f"{load.model} {load.names} {load.dtype}" for load in loads]
    if isinstance(gathering, PermutedVocabulary):
        tokenizer = gathering.tokenizer_task
        lines += [
            f"{tokenizer.tokenizer_source} {tokenizer.add_tokens} {gathering.pad_to_multiple_of}",
            *sorted(f"{name} {how}" for name, how in dict(gathering.tokens or {}).items()),
        ]
    return short_digest(lines)


def short_digest(lines: Iterable[str]) -> str:
    """A digest of some lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGEST_LENGTH]
