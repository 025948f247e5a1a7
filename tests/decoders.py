"""Tiny decoders of text, dense ones and those of experts."""

from __future__ import annotations

from typing import Any

from architecture_parts import COMMON, HEAD, Made, causal

WIDE = COMMON | {"num_key_value_heads": 2}
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
DECODERS: dict[str, Made] = {
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
}
