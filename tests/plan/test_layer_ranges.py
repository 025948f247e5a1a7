"""Ranges of layers and modules that the models do not have, and models of unequal depth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from families import Family
from models import Trio, make_agent, make_base, merge_yaml
from refusals import agent, refusal
from transformers import AutoModelForCausalLM

COUNTED = "They are counted from 0, and the second number is the first that is left out."


def slices(family: Family, *ranges: list[int], agents: list[int] | None = None) -> dict[str, Any]:
    """Slices of base and agent, in which the agent may have a range of its own."""
    pieces = [
        {
            "sources": [
                {"model": str(family.path("base")), "layer_range": given},
                {"model": str(family.path("tool")), "layer_range": agents or given},
            ]
        }
        for given in ranges
    ]
    return {"models": None, "slices": pieces}


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo3"])
def test_a_range_that_is_no_range_of_layers_is_refused(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    for given in ([2, 0], [1, 1], [0, 0], [-1, 1], [0, 3], [7, 8]):
        assert family.refusal(**slices(family, given)) == (
            f"Error: model {family.path('base')}: `layer_range: {given}` is no range of its "
            f"layers, of which it has 2. {COUNTED}"
        )


def test_a_range_of_a_later_slice_is_refused_with_its_model(tmp_path):
    family = Family(tmp_path)
    changes = slices(family, [0, 1], [1, 2])
    changes["slices"][1]["sources"][1]["layer_range"] = [2, 1]
    assert family.refusal(**changes) == (
        f"Error: model {family.path('tool')}: `layer_range: [2, 1]` is no range of its layers, of "
        f"which it has 2. {COUNTED}"
    )


def test_a_range_within_a_module_is_refused_too(tmp_path):
    family = Family(tmp_path)
    pieces = slices(family, [2, 0])["slices"]
    assert family.refusal(models=None, modules={"default": {"slices": pieces}}) == (
        f"Error: model {family.path('base')}: `layer_range: [2, 0]` is no range of its layers, of "
        f"which it has 2. {COUNTED}"
    )


def test_sources_of_unequal_length_are_refused_in_one_line(tmp_path):
    family = Family(tmp_path)
    line = family.refusal(**slices(family, [0, 2], agents=[0, 1]))
    assert "All inputs to a slice must contain the same number of layers" in line


@pytest.mark.parametrize("in_module", [False, True])
def test_models_of_unequal_depth_are_named_with_their_layers(trio, in_module):
    deep = trio.folder / "deep"
    make_base(deep / "base", num_hidden_layers=3)
    make_agent(deep / "agent", deep / "base", 0.1, 1)
    models = [{"model": str(agent(trio))}, {"model": str(deep / "agent")}]
    changes: dict[str, Any] = {"models": models}
    if in_module:
        changes = {"models": None, "modules": {"default": {"models": models}}}
    assert refusal(trio, "ram_plus", **changes) == (
        "Error: by their config.json the models have different numbers of layers: "
        f"{trio.base_path} 2, {agent(trio)} 2, {deep / 'agent'} 3. All models must be of one "
        "architecture and size; parts of deeper ones are merged with `slices:` and a "
        "`layer_range:` for each."
    )


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo3"])
def test_a_module_that_does_not_exist_is_refused_with_those_that_do(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    models = family.config()["models"]
    assert family.refusal(models=None, modules={"text_decoder": {"models": models}}) == (
        "Error: `modules:` names text_decoder, and the models have no such module; they have "
        "default. Write one of these, or list the models under `models:`."
    )


def test_layers_that_are_repeated_keep_their_types(tmp_path):
    trio = Trio(tmp_path, layer_types=["full_attention", "sliding_attention"], sliding_window=8)
    agents = [*trio.agents]

    def piece(start: int, end: int) -> dict[str, Any]:
        models = [trio.base_path, *agents]
        return {"sources": [{"model": model, "layer_range": [start, end]} for model in models]}

    config = {
        "merge_method": "ram_plus",
        "base_model": trio.base_path,
        "slices": [piece(0, 2), piece(0, 1), piece(1, 2)],
    }
    merge_yaml(config, tmp_path / "merged")
    written = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert written["num_hidden_layers"] == 4
    assert written["layer_types"] == ["full_attention", "sliding_attention"] * 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert len(model.model.layers) == 4
