"""The plan's writing tasks, so that what is in the output folder is the whole merge or no model.

A full disk ends in one line and not in a traceback, and the weights of an earlier merge are out
of the way before the first new one is written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mergekit.graph import Task
from mergekit.io.tasks import FinalizeModel, SaveTensor, TensorWriterTask
from mergekit.io.tensor_writer import TensorWriter
from pydantic import PrivateAttr
from safetensors import SafetensorError

from mergekit_ram.errors import InputError
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.record.schema import RECORD_NAME

LOG = logging.getLogger("mergekit_ram")

MODEL_FILES = (
    "config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "model.safetensors",
    "model-*.safetensors",
    "pytorch_model.bin",
    "pytorch_model-*.bin",
    RECORD_NAME,
)
"""The files that make a folder a model, those first that say so."""


class MergedTensorWriter(TensorWriterTask):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's writer, in a folder without the files of an earlier model.

    mergekit writes ``config.json`` last. Left from an earlier merge, it would make a model of
    whatever weights there are when this one is interrupted.
    """

    def execute(self, **_: Any) -> TensorWriter:
        with _writing_to(self.out_path):
            _clear(Path(self.out_path))
            return super().execute()


class SaveMergedTensor(SaveTensor):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's saving of one tensor; what goes wrong with the disk is said in one line."""

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, tensor: torch.Tensor | None
    ) -> None:
        with _writing_to(self.writer_task.out_path):
            super().execute(writer=writer, tensor=tensor)


class FinalizeMergedModel(FinalizeModel):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's last writing, where errors of asynchronous writes surface too."""

    _recorder: MergeRecorder | None = PrivateAttr(default=None)

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, **arguments: Any
    ) -> None:
        with _writing_to(self.writer_task.out_path):
            super().execute(writer=writer, **arguments)
            if self._recorder is not None:
                self._recorder.write(self.writer_task.out_path)


def guard_writing(tasks: Sequence[Task[Any]], recorder: MergeRecorder) -> list[Task[Any]]:
    """Exchange a plan's writing tasks for those above, the last one with the record to write."""
    guarded: dict[Task[Any], Task[Any]] = {}
    for task in tasks:
        if isinstance(task, SaveTensor):
            guarded[task] = SaveMergedTensor(
                **{**dict(task), "writer_task": _guarded_writer(task.writer_task)}
            )
        elif isinstance(task, FinalizeModel):
            last = FinalizeMergedModel(
                tensor_save_tasks=tuple(guarded.get(save, save) for save in task.tensor_save_tasks),
                writer_task=_guarded_writer(task.writer_task),
            )
            last._recorder = recorder
            guarded[task] = last
    return [guarded.get(task, task) for task in tasks]


def _guarded_writer(writer: TensorWriterTask) -> MergedTensorWriter:
    return MergedTensorWriter(**dict(writer))


def _clear(folder: Path) -> None:
    """Remove what mergekit writes of a model: it is about to write it again."""
    old = [file for pattern in MODEL_FILES for file in sorted(folder.glob(pattern))]
    if old:
        LOG.warning(
            "output folder %s: replacing the model in it (%s)",
            folder,
            ", ".join(file.name for file in old),
        )
    for file in old:
        file.unlink()


@contextmanager
def _writing_to(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"output folder {folder}: writing failed: {error}. Make room or choose another "
            "folder; what was written so far is no complete model and does not load."
        ) from None
