"""The plan's writing tasks, so that the output folder holds the whole merge or no model.

A full disk is an error of one line, an earlier model is removed before the first new weight is
written, and a merge whose inputs change meanwhile writes no configuration.
"""

from __future__ import annotations

import faulthandler
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from mergekit.io.tasks import FinalizeModel, SaveTensor, TensorWriterTask
from mergekit.io.tensor_writer import TensorWriter
from pydantic import PrivateAttr
from safetensors import SafetensorError

from mergekit_ram.errors import InputError
from mergekit_ram.plan.folder import remove_earlier_model
from mergekit_ram.record.merge import MergeRecorder


class MergedTensorWriter(TensorWriterTask):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's writer, in a folder without the files of an earlier model.

    mergekit writes ``config.json`` and the tokenizer last. Left from an earlier merge, they would
    make a model of the weights that an interrupted merge leaves.
    """

    _recorder: MergeRecorder = PrivateAttr()

    def execute(self, **_: Any) -> TensorWriter:
        # First, so that a file that was replaced while it was counted costs no earlier model.
        self._recorder.inputs.check_unchanged()
        _show_bus_errors()
        with writing_to(self.out_path):
            remove_earlier_model(Path(self.out_path))
            return super().execute()


class SaveMergedTensor(SaveTensor):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's saving of one tensor; an error of the disk is raised as one line."""

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, tensor: torch.Tensor | None
    ) -> None:
        with writing_to(self.writer_task.out_path):
            super().execute(writer=writer, tensor=tensor)


class FinalizeMergedModel(FinalizeModel):  # type: ignore[misc]  # frozen, as its base is
    """mergekit's last writing task, where errors of asynchronous writes surface too."""

    _recorder: MergeRecorder = PrivateAttr()
    _release: Callable[[], None] | None = PrivateAttr(default=None)

    @property
    def recorder(self) -> MergeRecorder:
        """The recorder of the plan that this task ends."""
        return self._recorder

    def execute(  # type: ignore[override]
        self, writer: TensorWriter, **arguments: Any
    ) -> None:
        self._recorder.inputs.check_unchanged()
        with writing_to(self.writer_task.out_path):
            super().execute(writer=writer, **arguments)
            self._recorder.write(self.writer_task.out_path)
        if self._release is not None:
            self._release()


def guard_writing(
    finalize: FinalizeModel, recorder: MergeRecorder, release: Callable[[], None] | None = None
) -> FinalizeMergedModel:
    """Exchange a plan's writing tasks for those above.

    Args:
        finalize: the plan's last task, which depends on all that save tensors.
        recorder: of the plan.
        release: called when the last task is done.
    """
    writer = MergedTensorWriter(**dict(finalize.writer_task))
    saves = (
        SaveMergedTensor(**{**dict(save), "writer_task": writer})
        for save in finalize.tensor_save_tasks
    )
    last = FinalizeMergedModel(tensor_save_tasks=tuple(saves), writer_task=writer)
    writer._recorder = last._recorder = recorder
    last._release = release
    return last


def _show_bus_errors() -> None:
    """Show where the process is when a file that is cut while it is mapped kills it."""
    if not faulthandler.is_enabled():
        # Without a standard error that is a file there is nowhere to write to.
        with suppress(AttributeError, OSError, RuntimeError, ValueError, io.UnsupportedOperation):
            faulthandler.enable()


@contextmanager
def writing_to(folder: str) -> Iterator[None]:
    """Raise an error of the disk as one line.

    Raises:
        InputError: naming the folder.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"output folder {folder}: writing failed: {error}. Make room or choose another "
            "folder; what was written so far is no complete model and does not load."
        ) from None
