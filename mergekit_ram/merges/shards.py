"""Loading from files of many tensors, in time that does not grow with their square.

mergekit's loader asks an open file for the list of its tensors whenever it loads one of them. We
load each twice, and the index tells which file holds it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from mergekit.io import LazyTensorLoader
from mergekit.io.loader import TensorLoader
from mergekit.io.tasks import LoaderCache

from mergekit_ram.merges.loads import RAW_LOADER_MODULE, PlannedLoads


class IndexedLoader(LazyTensorLoader):
    """mergekit's loader, which opens the file that the index names and asks it for nothing else."""

    _file: str | None = None

    def get_tensor(
        self,
        key: str,
        device: str = "cpu",
        aliases: list[str] | None = None,
        raise_on_missing: bool = True,
    ) -> torch.Tensor | None:
        """Load a tensor; see ``LazyTensorLoader.get_tensor``."""
        file = self.index.tensor_paths.get(key)
        if file is None:
            found: torch.Tensor | None = super().get_tensor(key, device, aliases, raise_on_missing)
            self._file = None
            return found
        with self.lock:
            if self.current_shard is None or file != self._file:
                # The file before is closed first.
                self.current_shard = None
                self.current_shard = TensorLoader.get(
                    os.path.join(self.index.base_path, file),
                    use_lazy_unpickle=self.lazy_unpickle,
                    device=device,
                )
                self._file = file
            return self.current_shard.get_tensor(key).to(device)


def load_by_index(planned: PlannedLoads) -> None:
    """Give the models of a plan loaders of our own, in mergekit's tables of loaders."""
    raw: Any = sys.modules.get(RAW_LOADER_MODULE)
    for load in {load.model: load for loads in planned.values() for load in loads}.values():
        table: dict[Any, LazyTensorLoader]
        name: Any
        if load.reference is not None:
            table, name = LoaderCache().loaders, load.reference
        else:
            table, name = raw.SimpleLoaderCache().loaders, load.model
        loader = table.get(name)
        if type(loader) is LazyTensorLoader:
            table[name] = IndexedLoader(loader.index, loader.lazy_unpickle)
