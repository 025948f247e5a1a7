"""mergekit's loader of a checkpoint, asked by the tensor names of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from mergekit.io import LazyTensorLoader, ShardedTensorIndex
from mergekit.io.loader import TensorLoader

from mergekit_ram.errors import InputError, reading
from mergekit_ram.models.checkpoints import Checkpoint, Source, TensorHeader, read_shard, shard_path


@dataclass
class NamedIndex(ShardedTensorIndex):
    """An index of tensors by the names of a plan.

    Attributes:
        headers: of the tensors.
        promised: the error about every tensor that is listed and in no file.
    """

    headers: dict[str, TensorHeader] = field(default_factory=dict)
    promised: dict[str, InputError] = field(default_factory=dict)


def headers_of(index: ShardedTensorIndex, model: str) -> dict[str, TensorHeader]:
    """The headers of all tensors of an index, mergekit's own too.

    Raises:
        InputError: a file is missing, empty or broken.
    """
    if isinstance(index, NamedIndex):
        return index.headers
    found: dict[str, TensorHeader] = {}
    for shard in index.shards:
        found |= read_shard(shard_path(index, shard.filename), index.is_safetensors, model)
    return found


class NamedLoader(LazyTensorLoader):
    """Loads a checkpoint's tensors by their names in a plan.

    mergekit's own asks an open file for the list of its tensors whenever it loads one of them;
    this one goes by the index, so that time does not grow with the square of their number.

    Args:
        model: as the configuration names it.
        checkpoint: to read.
        lazy_unpickle: mergekit's option.
        stored: where the checkpoint holds every tensor, by its name in the plan.
    """

    index: NamedIndex

    def __init__(
        self, model: str, checkpoint: Checkpoint, lazy_unpickle: bool, stored: Mapping[str, Source]
    ):
        inner, headers, promised = checkpoint.index, checkpoint.headers, checkpoint.promised
        here = {name: source for name, source in stored.items() if source.name in headers}
        index = NamedIndex(
            inner.base_path,
            inner.is_safetensors,
            {name: inner.tensor_paths[source.name] for name, source in here.items()},
            inner.shards,
            {name: source.header(headers[source.name]) for name, source in here.items()},
            {name: promised[s.name] for name, s in stored.items() if s.name in promised},
        )
        super().__init__(index, lazy_unpickle)
        self._model = model
        self._stored = here
        self._file: str | None = None

    def get_tensor(
        self,
        key: str,
        device: str = "cpu",
        aliases: list[str] | None = None,
        raise_on_missing: bool = True,
    ) -> torch.Tensor | None:
        """See mergekit's loader.

        Raises:
            InputError: the tensor cannot be read.
        """
        name = next((name for name in (key, *(aliases or ())) if name in self._stored), None)
        if name is None:
            if raise_on_missing:
                raise KeyError(key)
            return None
        source, file = self._stored[name], self.index.tensor_paths[name]
        path = str(shard_path(self.index, file))
        what, remedy = f"tensor {source.name} in {path}", "Repair or re-download this checkpoint."
        with self.lock, reading(self._model, what, remedy):
            if self.current_shard is None or file != self._file:
                self.current_shard = None  # The file before is closed first.
                self.current_shard = TensorLoader.get(path, self.lazy_unpickle, device)
                self._file = file
            return source.of(self.current_shard.get_tensor(source.name)).to(device)

    def peek(self, name: str) -> torch.Tensor | None:
        """A tensor to look at before a merge, its file closed again; None if it is absent."""
        tensor = self.get_tensor(name, raise_on_missing=False)
        self.flush()  # type: ignore[no-untyped-call]
        return tensor
