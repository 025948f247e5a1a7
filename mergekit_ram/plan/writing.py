"""The plan's writing tasks, so that what is in the output folder is the whole merge or no model.

A full disk ends in one line and not in a traceback, an earlier merge is out of the way before the
first new weight is written, and inputs that change meanwhile make no model.
"""

from __future__ import annotations

import faulthandler
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mergekit.graph import Task
from mergekit.io.tasks import FinalizeModel, SaveTensor, TensorWriterTask
from mergekit.io.tensor_writer import TensorWriter
from pydantic import PrivateAttr
from safetensors import SafetensorError

from mergekit_ram.errors import InputError
from mergekit_ram.plan.earlier import remove_earlier_model
from mergekit_ram.plan.lock import FolderLock
from mergekit_ram.record.merge import MergeRecorder


class MergedTensorWriter(TensorWriterTask):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's writer, in a folder without the files of an earlier model.

    mergekit writes ``config.json`` and the tokenizer last. Left from an earlier merge, they would
    make a model of whatever there is when this one is interrupted.
    """

    _recorder: MergeRecorder | None = PrivateAttr(default=None)

    def execute(self, **_: Any) -> TensorWriter:
        if self._recorder is not None:
            # A file that was replaced while it was counted costs nobody the earlier model.
            self._recorder.inputs.check_unchanged()
        _show_bus_errors()
        with writing_to(self.out_path):
            remove_earlier_model(Path(self.out_path))
            return super().execute()


class SaveMergedTensor(SaveTensor):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's saving of one tensor; what goes wrong with the disk is said in one line."""

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, tensor: torch.Tensor | None
    ) -> None:
        with writing_to(self.writer_task.out_path):
            super().execute(writer=writer, tensor=tensor)


class FinalizeMergedModel(FinalizeModel):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's last writing, where errors of asynchronous writes surface too."""

    _recorder: MergeRecorder | None = PrivateAttr(default=None)
    _lock: FolderLock | None = PrivateAttr(default=None)
    _writes_all: bool = PrivateAttr(default=False)

    @property
    def recorder(self) -> MergeRecorder:
        """Of the plan that this task ends."""
        assert self._recorder is not None, "set when the plan's writing is guarded"
        return self._recorder

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, **arguments: Any
    ) -> None:
        if self._recorder is not None:
            self._recorder.inputs.check_unchanged()
        with writing_to(self.writer_task.out_path):
            super().execute(writer=writer, **arguments)
            if self._recorder is not None:
                self._recorder.write(self.writer_task.out_path)
        if self._lock is not None and self._writes_all:
            self._lock.release()


def guard_writing(
    tasks: Sequence[Task[Any]],
    recorder: MergeRecorder,
    lock: FolderLock | None,
    *,
    writes_all: bool = False,
) -> list[Task[Any]]:
    """Exchange a plan's writing tasks for those above.

    Args:
        tasks: of a plan; those that do not write stay.
        recorder: of the plan; its record is written by the last one.
        lock: on the folder, kept as long as the tasks are; none where others look after it.
        writes_all: nothing is written when the last task is done, so that it releases the lock.
    """
    guard = _Guard(recorder, lock, writes_all)
    # By identity: a task's hash covers all that is below it.
    guarded: dict[int, Task[Any]] = {}
    for task in tasks:
        if isinstance(task, SaveTensor):
            guarded[id(task)] = SaveMergedTensor(
                **{**dict(task), "writer_task": guard.writer(task.writer_task)}
            )
        elif isinstance(task, FinalizeModel):
            guarded[id(task)] = guard.last(task, guarded)
    return [guarded.get(id(task), task) for task in tasks]


@dataclass(frozen=True)
class _Guard:
    recorder: MergeRecorder
    lock: FolderLock | None
    writes_all: bool
    _writers: dict[TensorWriterTask, MergedTensorWriter] = field(default_factory=dict)

    def writer(self, task: TensorWriterTask) -> MergedTensorWriter:
        """The same one for the same task."""
        if task not in self._writers:
            self._writers[task] = MergedTensorWriter(**dict(task))
            self._writers[task]._recorder = self.recorder
        return self._writers[task]

    def last(self, task: FinalizeModel, guarded: dict[int, Task[Any]]) -> FinalizeMergedModel:
        last = FinalizeMergedModel(
            tensor_save_tasks=tuple(guarded.get(id(save), save) for save in task.tensor_save_tasks),
            writer_task=self.writer(task.writer_task),
        )
        last._recorder = self.recorder
        last._lock = self.lock
        last._writes_all = self.writes_all
        return last


def _show_bus_errors() -> None:
    """A file that is cut while it is mapped kills the process; let it say where it was."""
    if not faulthandler.is_enabled():
        # Without a standard error that is a file there is nowhere to say it.
        with suppress(AttributeError, OSError, RuntimeError, ValueError, io.UnsupportedOperation):
            faulthandler.enable()


@contextmanager
def writing_to(folder: str) -> Iterator[None]:
    """Say in one line what goes wrong with the disk."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"output folder {folder}: writing failed: {error}. Make room or choose another "
            "folder; what was written so far is no complete model and does not load."
        ) from None
