"""What the tests' tiny models have in common."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 16}

Made = tuple[str, str, dict[str, Any]]
"""Class of the model, class of its configuration, settings."""


def causal(name: str, **settings: Any) -> Made:
    return f"{name}ForCausalLM", f"{name}Config", settings
