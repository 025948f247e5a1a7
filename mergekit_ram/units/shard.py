"""Writes the shard of one unit, and tells a damaged one."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

Tensors = Mapping[str, torch.Tensor]


def digest_of(tensors: Tensors) -> str:
    """A digest of names, dtypes, shapes and bytes, whatever file they lie in."""
    hasher = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hasher.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def draft_of(path: Path) -> Path:
    """The name under which a process writes a file that is not done."""
    return path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.part")


def write_draft(tensors: Tensors, path: Path, *, safe: bool) -> None:
    """Write a shard under its draft's name."""
    draft = draft_of(path)
    if safe:
        save_file(dict(tensors), draft, metadata={"format": "pt"})
    else:
        torch.save(dict(tensors), draft)


def settle(path: Path) -> None:
    """Flush a draft and give it its name."""
    draft = draft_of(path)
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, path)


def is_intact(path: Path, digest: str) -> bool:
    """Whether a finished shard holds what was written."""
    try:
        if path.suffix == ".safetensors":
            return digest_of(load_file(path)) == digest
        return digest_of(torch.load(path, weights_only=True, mmap=True)) == digest
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, LookupError):
        return False
