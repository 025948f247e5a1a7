"""Copies the base's files that are neither weights nor written by the merge, such as its code."""

from __future__ import annotations

import filecmp
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration
from mergekit.options import MergeOptions

from mergekit_ram.plan.folder import LOCK_NAME, TOKENIZER, WEIGHTS, indexed_files

DONE = logging.getLogger("mergekit_ram.merge")

ENDINGS_OF_WEIGHTS = [
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".msgpack",
    ".gguf",
    ".onnx",
    ".npz",
    ".distcp",
]
"""Of weights and of the states of optimizers."""

LARGEST = 100_000_000
"""Bytes of a file that is copied; a tokenizer may be larger."""


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
    base, out, left = Path(os.path.realpath(base)), Path(os.path.realpath(out)), []
    skipped = [*WEIGHTS.split(), *([] if with_tokenizer else TOKENIZER.split())]
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
        DONE.info("output folder %s: not copied from the base: %s", out, ", ".join(left))


def _files(base: Path) -> Iterator[Path]:
    """The files of a folder, and the folders below that belong to no model or to another one."""
    for folder, below, names in os.walk(base):
        others = [name for name in below if _is_foreign(Path(folder, name))]
        below[:] = sorted(set(below) - set(others))
        yield from (Path(folder, name) for name in sorted([*others, *names]))


def _is_foreign(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name == "runs" or folder.is_symlink():
        return True
    return not os.access(folder, os.R_OK) or any(map(_is_weights, folder.iterdir()))


def _is_weights(path: Path) -> bool:
    return path.suffix in ENDINGS_OF_WEIGHTS


def _matches(name: Path, patterns: list[str]) -> bool:
    return any(map(name.match, patterns))


def _belongs(path: Path, base: Path) -> bool:
    """Whether a file is part of the model; in a hub's cache it is a link to a blob."""
    blobs = base.parent.parent / "blobs"
    is_inside = _is_below(path, base) or (
        base.parent.name == "snapshots" and _is_below(path, blobs)
    )
    if path.name.startswith(".") or _is_weights(path) or not is_inside or not path.is_file():
        return False
    return path.stat().st_size <= LARGEST or _matches(path, TOKENIZER.split())


def _is_below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _is_other(path: Path, target: Path, out: Path) -> bool:
    """Whether a file was in the output folder before this merge, and differs from the base's."""
    lock = out / LOCK_NAME
    is_older = (
        lock.exists() and target.exists() and (target.stat().st_mtime_ns < lock.stat().st_mtime_ns)
    )
    return is_older and not filecmp.cmp(path, target, shallow=False)
