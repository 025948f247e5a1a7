"""Tiny checkpoints on disk, and the commands run on them."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2Tokenizer

Weights = dict[str, torch.Tensor]

SPARSITY = {"coder": 0.05, "tool": 0.45, "memory": 0.55}
"""Share of parameters that each of the usual three agents changes."""


def tiny_config(**changes: Any) -> Qwen2Config:
    settings: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    return Qwen2Config(**(settings | changes))


def make_base(folder: Path, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Weights:
    """Save a random Qwen2 base and return its weights as stored."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(**changes), dtype=dtype)
    model.save_pretrained(folder)
    return read_weights(folder)


def make_agent(
    folder: Path, base_folder: Path, share: float, seed: int, dtype: torch.dtype | None = None
) -> Weights:
    """Save a copy of the base with a random ``share`` of its weights changed."""
    base = read_weights(base_folder)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in base.items():
        values = tensor.float()
        changed = torch.rand(values.shape, generator=generator) < share
        step = torch.randn(values.shape, generator=generator) * 1e-2
        weights[name] = torch.where(changed, values + step, values).to(dtype or tensor.dtype)
    write_weights(folder, weights, base_folder)
    return weights


def write_weights(folder: Path, weights: Mapping[str, torch.Tensor], like: Path) -> None:
    """Save weights with the configuration files of the model in ``like``."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in like.glob("*.json"):
        if "index" not in file.name:
            (folder / file.name).write_text(file.read_text())
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})


def read_weights(folder: Path) -> Weights:
    """All tensors of a checkpoint, from however many shards."""
    weights: Weights = {}
    for shard in sorted(folder.glob("*.safetensors")):
        weights |= load_file(shard)
    return weights


TOKENS = tuple(f"<{number}>" for number in range(96))


def save_tokenizer(folder: Path, tokens: Sequence[str] = TOKENS) -> None:
    """A Qwen2 tokenizer with this vocabulary, in this order."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary, merges=[], pad_token="<0>", eos_token="<1>", unk_token="<0>"
    )
    assert len(tokenizer) == len(tokens)
    tokenizer.save_pretrained(folder)


class Trio:
    """A base and three agents in a folder, and merges of them through ``mergekit-yaml``."""

    def __init__(self, folder: Path, **changes: Any):
        self.folder = folder
        self.base = make_base(folder / "base", **changes)
        self.agents = {
            str(folder / name): make_agent(folder / name, folder / "base", share, seed)
            for seed, (name, share) in enumerate(SPARSITY.items(), start=1)
        }

    @property
    def base_path(self) -> str:
        return str(self.folder / "base")

    def config(self, method: str, **changes: Any) -> dict[str, Any]:
        return {
            "merge_method": method,
            "base_model": self.base_path,
            "models": [{"model": model} for model in self.agents],
        } | changes

    def merge(self, method: str, *options: str, **changes: Any) -> Weights:
        return merge_yaml(self.config(method, **changes), self.folder / "merged", *options)


def run_yaml(config: Mapping[str, Any] | str, out: Path, *options: str) -> Result:
    """Run ``mergekit-yaml`` in this process."""
    from mergekit.scripts.run_yaml import main

    text = config if isinstance(config, str) else yaml.safe_dump(dict(config), sort_keys=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    recipe = out.parent / f"{out.name}.yml"
    recipe.write_text(text)
    forget_loaded_models()
    return CliRunner().invoke(main, [str(recipe), str(out), *options])


def merge_yaml(config: Mapping[str, Any] | str, out: Path, *options: str) -> Weights:
    """Run ``mergekit-yaml`` and return the weights that it wrote."""
    for old in out.glob("*.safetensors*"):
        old.unlink()
    succeed(run_yaml(config, out, "--no-copy-tokenizer", *options))
    return read_weights(out)


def succeed(result: Result) -> None:
    if result.exit_code != 0:
        trace = "".join(traceback.format_exception(result.exception)) if result.exception else ""
        raise AssertionError(f"exit code {result.exit_code}\n{result.output}\n{trace}")


def forget_loaded_models() -> None:
    """mergekit keeps loaders open by path; tests write new weights to old paths."""
    from mergekit.io.tasks import LoaderCache

    LoaderCache.loaders.clear()


def output_dtype(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    return str(config.get("dtype") or config.get("torch_dtype"))
