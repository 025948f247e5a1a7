"""Tiny models of many architectures, built by transformers from their own configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

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
WIDE = COMMON | {"num_key_value_heads": 2}
HEAD = {"head_dim": 16}
EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_experts": 4,
}
DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
ENCODER: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "patch_size": 4,
    "image_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
MULTIMODAL_ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
VISION_DEPTH = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "patch_size": 4,
    "depth": 2,
    "num_heads": 2,
    "out_hidden_size": 32,
}

Made = tuple[str, str, dict[str, Any]]
"""Class of the model, class of its configuration, settings."""


def causal(name: str, **settings: Any) -> Made:
    return f"{name}ForCausalLM", f"{name}Config", settings


def vision_language(name: str, text: dict[str, Any], vision: dict[str, Any], **more: Any) -> Made:
    settings = {"text_config": text, "vision_config": vision} | more
    return f"{name}ForConditionalGeneration", f"{name}Config", settings


ARCHITECTURES: dict[str, Made] = {
    # Dense decoders
    "Qwen2": causal("Qwen2", **COMMON),
    "Qwen2, tied": causal("Qwen2", **COMMON, tie_word_embeddings=True),
    "Qwen3": causal("Qwen3", **COMMON, **HEAD),
    "Llama": causal("Llama", **COMMON),
    "Mistral": causal("Mistral", **COMMON),
    "Ministral": causal("Ministral", **COMMON, **HEAD),
    "Gemma": causal("Gemma", **COMMON, **HEAD),
    "Gemma2": causal("Gemma2", **COMMON, **HEAD),
    "Gemma3, text": ("Gemma3ForCausalLM", "Gemma3TextConfig", COMMON | HEAD),
    "Phi": causal("Phi", **WIDE),
    "Phi3": causal("Phi3", **COMMON),
    "Olmo": causal("Olmo", **COMMON),
    "Olmo2": causal("Olmo2", **COMMON),
    "Olmo3": causal("Olmo3", **COMMON),
    "Cohere": causal("Cohere", **COMMON),
    "Cohere2": causal("Cohere2", **COMMON),
    "Granite": causal("Granite", **COMMON),
    "Glm": causal("Glm", **COMMON, **HEAD),
    "Glm4": causal("Glm4", **COMMON, **HEAD),
    "StableLm": causal("StableLm", **COMMON),
    "Starcoder2": causal("Starcoder2", **COMMON),
    "Nemotron": causal("Nemotron", **COMMON, **HEAD),
    "SmolLM3": causal("SmolLM3", **COMMON),
    "Exaone4": causal("Exaone4", **COMMON),
    "Seed-OSS": causal("SeedOss", **COMMON, **HEAD),
    "Apertus": causal("Apertus", **COMMON),
    "Ernie4.5": causal("Ernie4_5", **COMMON, **HEAD),
    "Hunyuan": causal("HunYuanDenseV1", **COMMON, **HEAD),
    "Helium, tied": causal("Helium", **COMMON, **HEAD, tie_word_embeddings=True),
    "Helium": causal("Helium", **COMMON, **HEAD),
    "Falcon": causal(
        "Falcon", vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=2
    ),
    "Bloom": causal("Bloom", vocab_size=96, hidden_size=32, n_layer=2, n_head=2),
    "OPT": causal(
        "OPT",
        vocab_size=96,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    ),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    ),
    "GPT-NeoX": causal(
        "GPTNeoX",
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    ),
    "GPT-J": causal(
        "GPTJ", vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=64, rotary_dim=8
    ),
    "GPT-BigCode": causal(
        "GPTBigCode", vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=64
    ),
    "MPT": causal("Mpt", vocab_size=96, d_model=32, n_layers=2, n_heads=2),
    # Experts
    "Mixtral": causal("Mixtral", **COMMON, num_local_experts=4),
    "Mixtral, as many experts as mergekit lists": causal("Mixtral", **COMMON, num_local_experts=8),
    "Qwen2-MoE": causal("Qwen2Moe", **COMMON, **EXPERTS, shared_expert_intermediate_size=16),
    "Qwen3-MoE": causal("Qwen3Moe", **COMMON, **EXPERTS, **HEAD),
    "Olmoe": causal("Olmoe", **COMMON, num_experts=4, num_experts_per_tok=2),
    "GraniteMoe": causal("GraniteMoe", **COMMON, num_local_experts=4, num_experts_per_tok=2),
    "PhiMoE": causal("Phimoe", **COMMON, num_local_experts=4),
    "DeepSeek-V2": causal("DeepseekV2", **WIDE, **DEEPSEEK),
    "DeepSeek-V3, first layer dense": causal("DeepseekV3", **WIDE, **DEEPSEEK),
    "GLM-4.5-MoE": causal(
        "Glm4Moe",
        **COMMON,
        **HEAD,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    ),
    "gpt-oss": causal("GptOss", **COMMON, **HEAD, num_local_experts=4, num_experts_per_tok=2),
    "Ernie4.5-MoE": causal(
        "Ernie4_5_Moe", **COMMON, moe_num_experts=4, moe_k=2, moe_intermediate_size=16
    ),
    "MiniMax-M2": causal("MiniMaxM2", **COMMON, **HEAD, num_local_experts=4, num_experts_per_tok=2),
    "Dots1": causal(
        "Dots1",
        **COMMON,
        **HEAD,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    ),
    "Jamba": causal(
        "Jamba",
        **COMMON,
        num_experts=4,
        mamba_d_state=4,
        mamba_dt_rank=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
    ),
    "Qwen3-Next": causal(
        "Qwen3Next",
        **COMMON,
        **HEAD,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "Llama4, text": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        COMMON
        | HEAD
        | {"num_local_experts": 4, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 2},
    ),
    # State spaces and convolutions
    "Mamba": causal("Mamba", vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=4),
    "Mamba2": causal(
        "Mamba2",
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        num_heads=4,
        head_dim=16,
        n_groups=1,
    ),
    "LFM2": causal("Lfm2", **COMMON, layer_types=["conv", "full_attention"]),
    "RecurrentGemma": causal(
        "RecurrentGemma",
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        lru_width=32,
    ),
    # Vision and language
    "Qwen2-VL": vision_language(
        "Qwen2VL",
        COMMON | {"rope_parameters": MULTIMODAL_ROPE},
        {"embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 2, "patch_size": 4},
    ),
    "Qwen2.5-VL": vision_language(
        "Qwen2_5_VL",
        COMMON | {"rope_parameters": MULTIMODAL_ROPE},
        VISION_DEPTH | {"fullatt_block_indexes": [0]},
    ),
    "Qwen3-VL": vision_language(
        "Qwen3VL",
        COMMON | HEAD | {"rope_parameters": MULTIMODAL_ROPE},
        VISION_DEPTH | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    ),
    "Mistral3": vision_language(
        "Mistral3",
        COMMON | HEAD | {"model_type": "mistral"},
        VISION | {"head_dim": 16, "model_type": "pixtral"},
    ),
    "Gemma3": vision_language("Gemma3", COMMON | HEAD, VISION, mm_tokens_per_image=4),
    "LLaVA": vision_language(
        "Llava",
        COMMON | {"model_type": "llama"},
        VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
    ),
    "PaliGemma": vision_language(
        "PaliGemma",
        COMMON | HEAD | {"model_type": "gemma"},
        VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
        projection_dim=32,
    ),
    "SmolVLM": vision_language("SmolVLM", COMMON | {"model_type": "llama"}, VISION, scale_factor=2),
    "InternVL": vision_language(
        "InternVL",
        COMMON | {"model_type": "qwen2"},
        VISION | {"image_size": [16, 16], "patch_size": [4, 4]},
    ),
    # Encoders, and encoders with decoders
    "BERT": ("BertForMaskedLM", "BertConfig", ENCODER),
    "BERT, classifier": ("BertForSequenceClassification", "BertConfig", ENCODER),
    "RoBERTa": ("RobertaForMaskedLM", "RobertaConfig", ENCODER),
    "DistilBERT": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": 96,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 2,
            "n_heads": 2,
            "max_position_embeddings": 64,
        },
    ),
    "ModernBERT": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        ENCODER | {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "DeBERTa-v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", ENCODER),
    "ELECTRA": ("ElectraForMaskedLM", "ElectraConfig", ENCODER | {"embedding_size": 16}),
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 96, "d_model": 32, "d_ff": 48, "d_kv": 16, "num_layers": 2, "num_heads": 2},
    ),
    "BART": (
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "vocab_size": 96,
            "d_model": 32,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "max_position_embeddings": 64,
            "pad_token_id": 1,
        },
    ),
    "Whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 96,
            "d_model": 32,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
    # Other heads
    "Llama, reward model": (
        "LlamaForSequenceClassification",
        "LlamaConfig",
        COMMON | {"num_labels": 1},
    ),
    "Qwen2, token values": (
        "Qwen2ForTokenClassification",
        "Qwen2Config",
        COMMON | {"num_labels": 1},
    ),
    "ViT": ("ViTForImageClassification", "ViTConfig", VISION | {"num_labels": 3}),
}


def build(name: str) -> torch.nn.Module:
    """A random model in bfloat16."""
    model_class, config_class, settings = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**settings)
    make: Callable[..., torch.nn.Module] = getattr(transformers, model_class)._from_config
    return make(config, dtype=torch.bfloat16)
