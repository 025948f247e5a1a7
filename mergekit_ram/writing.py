"""The plan's writing tasks, so that a full disk ends in one line and not in a traceback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mergekit.graph import Task
from mergekit.io.tasks import FinalizeModel, SaveTensor
from mergekit.io.tensor_writer import TensorWriter
from safetensors import SafetensorError

from mergekit_ram.errors import InputError


class SaveMergedTensor(SaveTensor):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's saving of one tensor; what goes wrong with the disk is said in one line."""

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, tensor: torch.Tensor | None
    ) -> None:
        with _writing_to(self.writer_task.out_path):
            super().execute(writer=writer, tensor=tensor)


class FinalizeMergedModel(FinalizeModel):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's last writing, where errors of asynchronous writes surface too."""

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, **arguments: Any
    ) -> None:
        with _writing_to(self.writer_task.out_path):
            super().execute(writer=writer, **arguments)


def guard_writing(tasks: Sequence[Task[Any]]) -> list[Task[Any]]:
    """Exchange a plan's writing tasks for those that explain a full disk."""
    guarded: dict[Task[Any], Task[Any]] = {
        task: SaveMergedTensor(**dict(task)) for task in tasks if isinstance(task, SaveTensor)
    }
    for task in tasks:
        if isinstance(task, FinalizeModel):
            saves = tuple(guarded.get(save, save) for save in task.tensor_save_tasks)
            guarded[task] = FinalizeMergedModel(
                tensor_save_tasks=saves, writer_task=task.writer_task
            )
    return [guarded.get(task, task) for task in tasks]


@contextmanager
def _writing_to(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"output folder {folder}: writing failed: {error}. Make room or choose another "
            "folder; what was written so far is no complete model and does not load."
        ) from None
