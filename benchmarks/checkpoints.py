"""Makes the models of the benchmark: a random base, and agents that changed a part of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from mergekit.io.tensor_writer import TensorWriter
from transformers import AutoModelForCausalLM, Qwen2Config

HEAD_SIZE = 64
SHARD_BYTES = 500_000_000
BASE_SPREAD = 0.02
STEP_SPREAD = 2e-4
"""Typical sizes of a weight, and of the update that reinforcement learning leaves on it."""

RECORD = "benchmark.json"

DENSITIES = (0.032, 0.462, 0.543)
"""Shares of parameters that the paper's three agents changed; further agents repeat them."""


@dataclass(frozen=True)
class Shape:
    """The sizes that make a Qwen2 model, its embedding tied to its head."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int

    def config(self, dtype: str) -> Qwen2Config:
        return Qwen2Config(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            vocab_size=self.vocabulary,
            num_attention_heads=self.hidden // HEAD_SIZE,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            dtype=dtype,
        )


SHAPES = {
    "0.05B": Shape(12, 512, 1408, 32_000),
    "0.49B": Shape(24, 896, 4864, 151_936),
    "2B": Shape(28, 2048, 8192, 151_936),
    # One tensor of 500M parameters, which nothing may hold in memory more than once.
    "embedding": Shape(1, 1024, 2048, 488_282),
}


@dataclass(frozen=True)
class Checkpoints:
    """What a set of models is made from; equal ones are made once."""

    shape: Shape
    densities: tuple[float, ...]
    dtype: str

    def folder_name(self, size: str) -> str:
        """A name for these models, told apart by all that they are made from."""
        densities = "-".join(f"{density:g}" for density in dict.fromkeys(self.densities))
        return f"{size}-{self.dtype}-{len(self.densities)}-{densities}"

    def make(self, folder: Path) -> int:
        """Write ``base``, ``agent0``, ``agent1`` … into ``folder``, unless they lie there.

        Returns:
            The number of parameters of each.
        """
        record = folder / RECORD
        wanted = json.loads(json.dumps(asdict(self)))
        if not record.exists() or json.loads(record.read_text())["made_from"] != wanted:
            parameters = self._write(folder)
            record.write_text(json.dumps({"made_from": wanted, "parameters": parameters}))
        return int(json.loads(record.read_text())["parameters"])

    def _write(self, folder: Path) -> int:
        config = self.shape.config(self.dtype)
        config.architectures = ["Qwen2ForCausalLM"]
        names = ["base", *(f"agent{number}" for number in range(len(self.densities)))]
        writers = [TensorWriter(str(folder / name), max_shard_size=SHARD_BYTES) for name in names]
        parameters = 0
        for number, (tensor, shape) in enumerate(_tensors(config)):
            parameters += shape.numel()
            for writer, values in zip(writers, self._versions(number, shape), strict=True):
                writer.save_tensor(tensor, values)
        for name, writer in zip(names, writers, strict=True):
            writer.finalize()
            config.save_pretrained(folder / name)
        return parameters

    def _versions(self, number: int, shape: torch.Size) -> Iterator[torch.Tensor]:
        """One tensor as the base has it, then as every agent does."""
        generator = torch.Generator().manual_seed(number)
        dtype = getattr(torch, self.dtype)
        base = torch.randn(shape, generator=generator).mul_(BASE_SPREAD).to(dtype)
        yield base
        for density in self.densities:
            step = torch.randn(shape, generator=generator).mul_(STEP_SPREAD)
            step.mul_(torch.rand(shape, generator=generator) < density)
            yield step.add_(base).to(dtype)


def _tensors(config: Qwen2Config) -> Iterator[tuple[str, torch.Size]]:
    """Name and shape of every tensor that a checkpoint of this model stores."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = set(model._tied_weights_keys or ())
    for name, tensor in model.state_dict().items():
        if name not in tied:
            yield name, tensor.shape
