"""Writes the output folder, so that it holds the whole merge or no model.

A full disk is an error of one line, an earlier model is removed before the first new weight is
written, and a merge whose inputs change meanwhile writes no configuration. Files of the base that
are neither weights nor written by the merge are copied last.
"""

from __future__ import annotations

import faulthandler
import filecmp
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import FinalizeModel, SaveTensor, TensorWriterTask
from mergekit.io.tensor_writer import TensorWriter
from mergekit.options import MergeOptions
from pydantic import PrivateAttr
from safetensors import SafetensorError

from mergekit_ram.errors import InputError, one_line
from mergekit_ram.plan.folder import (
    LOCK_NAME,
    TOKENIZER,
    WEIGHTS,
    indexed_files,
    remove_earlier_model,
)
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.text import say

ENDINGS_OF_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf"),
    *(".onnx", ".npz", ".distcp"),
)
"""Of weights and of the states of optimizers."""

LARGEST = 100_000_000
"""Bytes of a file that is copied; a tokenizer may be larger."""


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


def guard_writing(finalize: FinalizeModel, recorder: MergeRecorder) -> FinalizeMergedModel:
    """Exchange a plan's writing tasks for those above.

    Args:
        finalize: the plan's last task, which depends on all that save tensors.
        recorder: of the plan.
    """
    writer = MergedTensorWriter(**dict(finalize.writer_task))
    saves = (
        # Merges know the dtype that is written, and what is copied has its own.
        SaveMergedTensor(**{**dict(save), "writer_task": writer, "dtype": None})
        for save in finalize.tensor_save_tasks
    )
    last = FinalizeMergedModel(tensor_save_tasks=tuple(saves), writer_task=writer)
    writer._recorder = last._recorder = recorder
    return last


def _show_bus_errors() -> None:
    """Show where the process is when a file that is cut while it is mapped kills it."""
    # Without a standard error that is a file there is nowhere to write to.
    with suppress(AttributeError, OSError, RuntimeError, ValueError):
        if not faulthandler.is_enabled():
            faulthandler.enable()


@contextmanager
def writing_to(folder: str, file: str = "") -> Iterator[None]:
    """Raise an error of the disk as one line.

    Args:
        folder: that is written to.
        file: its name, where the error does not tell.

    Raises:
        InputError: naming folder and file.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        name = getattr(error, "filename", None) or file
        failed = f"writing {name} failed" if name else "writing failed"
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(
            f"output folder {folder}: {failed}: {reason}. Make room or choose another "
            "folder; what was written so far is no complete model and does not load."
        ) from None


def copy_base_files(
    base: ModelReference | None, config: MergeConfiguration, out_path: str, options: MergeOptions
) -> None:
    """Copy the files of the base's folder that a finished merge has not written; see below.

    A tokenizer that the recipe makes is not mixed with the base's.
    """
    assert base is not None, "our methods require one"
    folder = Path(base.local_path(options.transformers_cache, ignore_lora=True))
    makes_tokenizer = config.tokenizer or config.tokenizer_source or config.chat_template
    keeps_tokenizer = options.copy_tokenizer and not makes_tokenizer
    copy_files(folder, Path(out_path), with_tokenizer=keeps_tokenizer, quiet=options.quiet)


def copy_files(base: Path, out: Path, *, with_tokenizer: bool, quiet: bool) -> None:
    """Copy the files of one folder that another one does not have.

    Weights, optimizer states, hidden files, folders of runs and of other models, large files, and
    links out of the folder are left behind and named in one line of the log. Nothing is
    overwritten; a file of an earlier merge that differs from the base's is named as well, and so
    is one that cannot be copied.

    Args:
        base: folder of the base.
        out: the output folder, with all that the merge has written.
        with_tokenizer: the output's tokenizer is the base's.
        quiet: name nothing.
    """
    base, out, left = base.resolve(), out.resolve(), []
    skipped = WEIGHTS if with_tokenizer else WEIGHTS + TOKENIZER
    shards = set(indexed_files(base))
    for path in _files(base):
        name = path.relative_to(base)
        target = out / name
        if path in shards or _matches(name, skipped):
            continue
        try:
            is_left = not _belongs(path, base) or not _is_below(target, out)
            if is_left or _is_other(path, target, out):
                left.append(str(name))
            elif not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                draft = target.with_name(f".{target.name}.draft")
                shutil.copyfile(path, draft)
                draft.replace(target)
        except OSError as error:
            left.append(f"{name} ({error.strerror})")
    if left and not quiet:
        say(f"output folder {out}: not copied from the base: {', '.join(left)}")


def _files(base: Path) -> Iterator[Path]:
    """The files of a folder, and the folders below that belong to no model or to another one."""
    for folder, below, names in os.walk(base):
        others = {name for name in below if _is_foreign(Path(folder, name))}
        below[:] = sorted(set(below) - others)
        yield from (Path(folder, name) for name in sorted([*others, *names]))


def _is_foreign(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name == "runs" or folder.is_symlink():
        return True
    return not os.access(folder, os.R_OK) or any(map(_is_weights, folder.iterdir()))


def _is_weights(path: Path) -> bool:
    return path.suffix in ENDINGS_OF_WEIGHTS


def _matches(name: Path, patterns: str) -> bool:
    return any(map(name.match, patterns.split()))


def _belongs(path: Path, base: Path) -> bool:
    """Whether a file is part of the model; in a hub's cache it is a link to a blob."""
    is_blob = base.parent.name == "snapshots" and _is_below(path, base.parent.parent / "blobs")
    if path.name.startswith(".") or _is_weights(path) or not path.is_file():
        return False
    is_small = path.stat().st_size <= LARGEST or _matches(path, TOKENIZER)
    return is_small and (is_blob or _is_below(path, base))


def _is_below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _is_other(path: Path, target: Path, out: Path) -> bool:
    """Whether a file was in the output folder before this merge, and differs from the base's."""
    lock = out / LOCK_NAME
    if not (lock.exists() and target.exists()):
        return False
    is_older = target.stat().st_mtime_ns < lock.stat().st_mtime_ns
    return is_older and not filecmp.cmp(path, target, shallow=False)
