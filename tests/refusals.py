"""Merges that end in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models import Trio, read_weights, run_yaml, write_weights
from transformers import AutoModelForCausalLM

BOTH = pytest.mark.parametrize("method", ["ram", "ram_plus"])


def refusal(trio: Trio, method: str, *options: str, **changes: Any) -> str:
    """The one line in which a merge ends that writes nothing."""
    config = trio.config(method, **changes)
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer", *options)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert not list(trio.folder.glob("out/*")), "something was written"
    return result.output.splitlines()[-1]


def agent(trio: Trio, name: str = "tool") -> Path:
    return trio.folder / name


def change(trio: Trio, name: str, **tensors: torch.Tensor | None) -> None:
    """Replace (or with None remove) tensors of a model."""
    weights = read_weights(trio.folder / name)
    for key, tensor in tensors.items():
        if tensor is None:
            del weights[key]
        else:
            weights[key] = tensor
    write_weights(trio.folder / name, weights, trio.folder / name)


def assert_not_loadable(folder: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        AutoModelForCausalLM.from_pretrained(folder)
