"""Layers and modules from the names of tensors."""

from __future__ import annotations

import pytest

from mergekit_ram.record.layers import Place


@pytest.mark.parametrize(
    ("name", "place", "layer"),
    [
        (
            "model.layers.3.mlp.up_proj.weight",
            Place("model.layers", 3, "mlp.up_proj"),
            "model.layers.3",
        ),
        (
            "visual.blocks.11.attn.qkv.bias",
            Place("visual.blocks", 11, "attn.qkv"),
            "visual.blocks.11",
        ),
        (
            "model.layers.0.mlp.experts.17.up_proj.weight",
            Place("model.layers", 0, "mlp.experts.up_proj"),
            "model.layers.0",
        ),
        ("model.embed_tokens.weight", Place("", None, "model.embed_tokens"), "model.embed_tokens"),
        ("lm_head.weight", Place("", None, "lm_head"), "lm_head"),
        ("w", Place("", None, "w"), "w"),
        ("visual.blocks.1.mlp.0.weight", Place("visual.blocks", 1, "mlp.0"), "visual.blocks.1"),
        ("0.weight", Place("", 0, "weight"), "0"),
    ],
)
def test_a_name_tells_the_place(name, place, layer):
    assert Place.of(name) == place
    assert place.layer == layer
