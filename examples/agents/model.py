"""The small model and its character tokenizer, and how both are saved and loaded."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

PAD, EOS = "<pad>", "<eos>"
# Byte-level vocabularies write the space as "Ġ".
CHARACTERS = string.digits + string.ascii_lowercase + "Ġ+="
MAX_POSITIONS = 64
# Near 1/sqrt(hidden size). From Qwen2's default of 0.02 so narrow a model learns to carry late.
INITIALIZER_RANGE = 0.08
ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def new_tokenizer() -> PreTrainedTokenizerBase:
    """Build Qwen2's byte-level tokenizer without merges: every character is one token.

    AutoTokenizer takes Qwen2's own class for a Qwen2 model, whatever class was saved, and that
    class imposes its byte-level splitting. A home-made tokenizer would not survive the loading.
    """
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *CHARACTERS])}
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=PAD,
        model_max_length=MAX_POSITIONS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


@dataclass(frozen=True)
class Shape:
    """The measures of a model; the defaults are the example's, of about 0.6 million parameters."""

    architecture: str = "qwen2"
    width: int = 128
    feed_forward: int = 352
    layers: int = 3
    heads: int = 4


EXAMPLE_SHAPE = Shape()


def new_model(tokenizer: PreTrainedTokenizerBase, shape: Shape = EXAMPLE_SHAPE) -> PreTrainedModel:
    """Build an untrained model from torch's current seed."""
    make_config, make_model = ARCHITECTURES[shape.architecture]
    config = make_config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return make_model(config)


def save(
    weights: dict[str, torch.Tensor],
    folder: Path,
    shape: Shape = EXAMPLE_SHAPE,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Round float32 weights to ``dtype`` once and write model and tokenizer into ``folder``.

    Both are made anew, so that nothing training left on its own copies is saved with them.
    """
    tokenizer = new_tokenizer()
    model = new_model(tokenizer, shape)
    model.load_state_dict(weights)
    model.to(dtype)  # type: ignore[arg-type]  # its wrapper hides the signature
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model in float32, which holds every bfloat16 value exactly, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer
