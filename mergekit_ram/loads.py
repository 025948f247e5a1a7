"""Which tensors of which checkpoints a planned merge will load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mergekit.common import ModelReference
from mergekit.graph import Task
from mergekit.io import ShardedTensorIndex
from mergekit.io.tasks import LoaderCache, LoadTensor

RAW_LOADER_MODULE = "mergekit.scripts.merge_raw_pytorch"
"""Looked up, not imported: a process that has not imported it has none of its tasks."""


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
