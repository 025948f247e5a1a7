"""Architectures, up to a generation by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import transformers
from models import (
    Weights,
    make_agent,
    merge_yaml,
    read_weights,
    tiny_config,
    write_weights,
)
from reference import same_bits
from roads import BOTH, assert_same, expected_with
from transformers import AutoModelForCausalLM

# Architectures, up to a generation by transformers


COMMON = {
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


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_experts": 4}


ARCHITECTURES = {
    "Qwen2": lambda: tiny_config(),
    "Llama": lambda: transformers.LlamaConfig(**COMMON),
    "Mistral": lambda: transformers.MistralConfig(**COMMON),
    "Gemma": lambda: transformers.GemmaConfig(**COMMON, head_dim=16),
    "Gemma2": lambda: transformers.Gemma2Config(**COMMON, head_dim=16),
    "Mixtral": lambda: transformers.MixtralConfig(**COMMON, num_local_experts=4),
    "Qwen3Moe": lambda: transformers.Qwen3MoeConfig(**COMMON, **EXPERTS, head_dim=16),
    "Olmo, which mergekit has to detect": lambda: transformers.OlmoConfig(**COMMON),
    "Qwen2Moe, detected, packed experts": lambda: transformers.Qwen2MoeConfig(
        **COMMON, **EXPERTS, shared_expert_intermediate_size=16
    ),
}


@BOTH
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures_merge_load_and_generate(tmp_path, method, r, architecture):
    torch.manual_seed(0)
    config = ARCHITECTURES[architecture]()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    base, agents = merged_through(tmp_path, model, method)
    expected = reference.merge(base, agents, r=r)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert_state(loaded, expected, model, tmp_path)
    tokens = loaded.generate(torch.tensor([[1, 5, 9]]), max_new_tokens=4, do_sample=False)
    assert tokens.shape[1] > 3


def merged_through(
    folder: Path, model: torch.nn.Module, method: str
) -> tuple[Weights, dict[str, Weights]]:
    """Save a model and three agents of it, merge them, and return their weights."""
    model.save_pretrained(folder / "base")
    agents = {}
    for seed, share in enumerate((0.1, 0.4, 0.5), start=1):
        path = folder / f"agent{seed}"
        agents[str(path)] = make_agent(path, folder / "base", share, seed)
    config = {
        "merge_method": method,
        "base_model": str(folder / "base"),
        "models": [{"model": path} for path in agents],
    }
    merge_yaml(config, folder / "merged")
    return read_weights(folder / "base"), agents


def assert_state(
    loaded: torch.nn.Module, expected: Weights, like: torch.nn.Module, folder: Path
) -> None:
    """The loaded model's parameters are those of the reference, whatever the layout on disk."""
    like.save_pretrained(folder / "expected")
    weights = {name: tensor.bfloat16() for name, tensor in expected.items()}
    write_weights(folder / "expected", weights, folder / "expected")
    right = type(like).from_pretrained(folder / "expected", dtype=torch.bfloat16)
    found, wanted = loaded.state_dict(), right.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert same_bits(found[name], tensor), name


VISION = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 4}


MULTIMODAL_ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}


def mistral3() -> torch.nn.Module:
    towers = {"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "head_dim": 16}
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(**COMMON, head_dim=16).to_dict(),
        vision_config=VISION | towers | {"model_type": "pixtral"},
    )
    return transformers.Mistral3ForConditionalGeneration._from_config(config, dtype=torch.bfloat16)


def qwen25_vl() -> torch.nn.Module:
    """mergekit lists some of its weights in two modules."""
    towers = {"depth": 2, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [0]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=COMMON | {"rope_parameters": MULTIMODAL_ROPE},
        vision_config=VISION | towers,
        tie_word_embeddings=False,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration._from_config(
        config, dtype=torch.bfloat16
    )


@BOTH
@pytest.mark.parametrize("make_model", [mistral3, qwen25_vl])
def test_a_vision_language_model_has_one_ratio_over_its_modules(tmp_path, method, r, make_model):
    torch.manual_seed(0)
    model = make_model()
    base, agents = merged_through(tmp_path, model, method)
    expected = reference.merge(base, agents, r=r)
    assert_same(read_weights(tmp_path / "merged"), expected)
    loaded = type(model).from_pretrained(tmp_path / "merged", dtype=torch.bfloat16)
    tokens = loaded.generate(
        torch.tensor([[5, 6, 9]]), max_new_tokens=4, do_sample=False, pad_token_id=0
    )
    assert tokens.shape[1] > 3


def test_a_module_may_have_its_own_parameters(tmp_path):
    torch.manual_seed(0)
    base, agents = merged_through(tmp_path, mistral3(), "ram_plus")
    models = [{"model": path} for path in agents]
    own = {"r": 0.9, "alpha": 1.0, "epsilon": 5e-3}
    config = {
        "merge_method": "ram_plus",
        "base_model": str(tmp_path / "base"),
        "modules": {
            "text_decoder": {"models": models},
            "multi_modal_projector": {"models": models},
            "vision_tower": {"models": models, "parameters": own},
        },
    }
    written = merge_yaml(config, tmp_path / "merged")
    shared = {"r": 0.1, "alpha": 2.0, "epsilon": 1e-5}

    def choose(name: str, _: str) -> dict[str, Any]:
        return own if name.startswith("vision_tower.") else shared

    assert_same(written, expected_with(base, agents, choose))
