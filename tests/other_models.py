"""Tiny models with states, images, encoders or other heads."""

from __future__ import annotations

from typing import Any

from architecture_parts import COMMON, HEAD, Made, causal

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


def vision_language(name: str, text: dict[str, Any], vision: dict[str, Any], **more: Any) -> Made:
    settings = {"text_config": text, "vision_config": vision} | more
    return f"{name}ForConditionalGeneration", f"{name}Config", settings


OTHERS: dict[str, Made] = {
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
