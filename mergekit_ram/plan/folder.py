"""The folder that a merge is written to: checked, locked, and cleared of an earlier model."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from mergekit_ram.errors import InputError
from mergekit_ram.record.schema import RECORD_NAME, WORK_FOLDER

LOG = logging.getLogger("mergekit_ram")

LOCK_NAME = ".mergekit_ram.lock"

TOLD_AFTER = 2.0
"""Seconds of waiting for a lock without a word."""

LOOK_EVERY = 0.1
"""Seconds between two tries to take a lock."""

MARKS = ("config.json", "adapter_config.json")
"""The files that make a folder a model or an adapter."""

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SHARD_ENDINGS = (".safetensors", ".bin", ".pt", ".pth")
TEMPLATES = "additional_chat_templates"

WEIGHTS = f"""
{" ".join(INDEXES)}
model.safetensors model-*.safetensors model.*.safetensors
consolidated*.safetensors consolidated*.pth
pytorch_model.bin pytorch_model-*.bin pytorch_model.*.bin tf_model*.h5 flax_model*.msgpack
adapter_model*.safetensors adapter_model*.bin
"""
TOKENIZER = f"""
tokenizer*.json tokenizer.model* special_tokens_map.json added_tokens.json
chat_template*.json chat_template*.jinja {TEMPLATES}/*.jinja
vocab.json vocab.txt merges.txt bpe.codes tekken.json *.tiktoken *.spm
spiece.model spm.model spm_char.model sentencepiece.model sentencepiece.bpe.model
"""
SETTINGS = f"""
{RECORD_NAME} generation_config.json hf_quant_config.json quant_config.json quantize_config.json
preprocessor_config.json processor_config.json video_preprocessor_config.json
audio_tokenizer_config.json
"""
LOADED = (*MARKS, *f"{WEIGHTS} {SETTINGS} {TOKENIZER}".split())
"""What transformers, PEFT and inference servers load from a folder, in the order of removal."""


class FolderInUse(InputError):
    """Another merge writes to a folder."""


def check_output(folder: str, size: int, inputs: Iterable[str]) -> None:
    """Check that a folder can hold ``size`` bytes, and is no input.

    Args:
        folder: to write to.
        size: of all merged weights, in bytes.
        inputs: folders that are read from.

    Raises:
        InputError: naming the folder, and what is needed and free.
    """
    target = Path(folder).resolve()
    if any(Path(path).resolve() == target for path in inputs):
        raise InputError(
            f"output folder {folder}: it is also the folder of a model that is merged, and would "
            "be overwritten while it is read. Choose another one."
        )
    free = shutil.disk_usage(next(p for p in (target, *target.parents) if p.exists())).free
    if free < size:
        raise InputError(
            f"output folder {folder}: the merged weights take {size / 1e6:,.1f} MB, and "
            f"{free / 1e6:,.1f} MB are free. Make room, choose another folder, or a narrower "
            "`out_dtype:`."
        )


def check_unfinished(folder: str) -> None:
    """Check that no ``mergekit-ram merge`` is to be resumed in a folder; it would delete the model.

    Raises:
        InputError: naming both ways out.
    """
    work = Path(folder, WORK_FOLDER)
    if work.exists():
        raise InputError(
            f"output folder {folder}: an unfinished `mergekit-ram merge` lies in it. Resume it by "
            f"the same command, or remove {work} to give it up."
        )


def lock_folder(folder: str, *, shared: bool = False, waits: bool = False) -> ExitStack:
    """Take the right to write to a folder, among all processes and threads; make it if needed.

    The lock is a file in the folder. The operating system releases that of a killed process.

    Args:
        folder: to write to.
        shared: others may share it, each with files of its own.
        waits: wait until it is free, and say so.

    Returns:
        Closing it releases the folder, and removes it again where it is empty and was made here.

    Raises:
        FolderInUse: another merge is writing to it.
        InputError: it cannot be written to.
    """
    told_at = time.monotonic() + TOLD_AFTER
    while True:
        try:
            return _lock_now(folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except FolderInUse:
            if not waits:
                raise
        if time.monotonic() > told_at:
            LOG.warning("output folder %s: waiting for another merge (%s)", folder, _holder(folder))
            told_at = math.inf
        time.sleep(LOOK_EVERY)


def _lock_now(folder: str, kind: int) -> ExitStack:
    target, held = Path(folder).resolve(), ExitStack()
    path = target / LOCK_NAME
    made = [parent for parent in (target, *target.parents) if not parent.exists()]
    for empty in reversed(made):
        held.callback(_try, empty.rmdir)
    try:
        target.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(f"{path} is no regular file")  # it might be anybody's, or never open
        file = held.enter_context(path.open("ab"))
    except OSError as error:
        held.close()
        is_removed = error.errno == errno.EEXIST and (target.is_dir() or not target.exists())
        if is_removed or (error.errno == errno.ENOENT and error.filename == str(path)):
            return _lock_now(folder, kind)  # its last user has just removed it
        raise InputError(
            f"output folder {folder}: it cannot be written to: {error}. Choose another one."
        ) from None
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        raise FolderInUse(
            f"output folder {folder}: another merge is writing to it. Wait until it is done, or "
            "choose another folder."
        ) from None
    except OSError as error:
        LOG.warning(
            "output folder %s cannot be locked (%s): its file system has no locks, so that one "
            "process at a time may write there",
            folder,
            error,
        )
        _try(path.unlink)
        return held
    if not os.fstat(file.fileno()).st_nlink:
        held.close()  # its last user has just removed the file
        return _lock_now(folder, kind)
    with suppress(OSError):  # of a full disk
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
    os.utime(path)  # files that are older were there before this merge
    held.callback(_remove_lock, path, file)
    return held


def _holder(folder: str) -> str:
    """The process that has locked a folder, as it wrote it there."""
    with suppress(OSError), Path(folder, LOCK_NAME).open(errors="replace") as file:
        return file.read(200)
    return "which has just ended"


def _remove_lock(path: Path, file: BinaryIO) -> None:
    """Remove the file of a lock, unless others share it."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            path.unlink()


def _try(remove: Callable[[], None]) -> None:
    with suppress(OSError):
        remove()


def remove_earlier_model(folder: Path, kept: Collection[Path] = ()) -> None:
    """Remove what transformers, PEFT and others would load from a folder; the rest stays.

    The files that make it a model go first, so that it is none whenever this is interrupted.

    Args:
        folder: of the model.
        kept: files of the new model.
    """
    found = [file for pattern in LOADED for file in sorted(folder.glob(pattern))]
    found += indexed_files(folder)
    present = (file for file in found if os.path.lexists(file) and not _is_folder(file))
    old = dict.fromkeys(file for file in present if file not in kept)
    if old:
        LOG.warning(
            "output folder %s: replacing the model in it (%s)",
            folder,
            ", ".join(str(file.relative_to(folder)) for file in old),
        )
    for file in old:
        file.unlink()
    _try((folder / TEMPLATES).rmdir)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def indexed_files(folder: Path) -> Iterator[Path]:
    """Shards of any name, as far as they lie in the folder itself."""
    for index in filter(lambda name: (folder / name).is_file(), INDEXES):
        try:
            shards = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(shards.values()))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        for name in names:
            # An index may name anything: nothing else is removed, and nothing elsewhere.
            if isinstance(name, str) and name == Path(name).name and name.endswith(SHARD_ENDINGS):
                yield folder / name
