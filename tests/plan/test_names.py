"""Tensors under names that trainers, PEFT or another version of transformers gave them."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from families import Family, assert_weights, warnings_of

MIXTRAL = "Mixtral, as many experts as mergekit lists"
DEEPSEEK = "DeepSeek-V3, first layer dense"

WRAPPED = {
    "compiled": ("`_orig_mod.`", lambda name: f"_orig_mod.{name}"),
    "compiled inside": ("`_orig_mod.`", lambda name: name.replace("model.", "model._orig_mod.", 1)),
    "distributed": ("`module.`", lambda name: f"module.{name}"),
    "both": ("`_orig_mod.`, `module.`", lambda name: f"module._orig_mod.{name}"),
    "the other way round": ("`_orig_mod.`, `module.`", lambda name: f"_orig_mod.module.{name}"),
    "PEFT": ("`base_model.model.`", lambda name: f"base_model.model.{name}"),
    "sharded": ("`_fsdp_wrapped_module.`", lambda name: f"_fsdp_wrapped_module.{name}"),
    "lightning": ("`_forward_module.`", lambda name: f"_forward_module.{name}"),
}
KNOWN_AND_DETECTED = pytest.mark.parametrize("architecture", ["Qwen2", "Olmo", DEEPSEEK])


@pytest.mark.parametrize(
    ("architecture", "how"),
    [("Qwen2", how) for how in WRAPPED] + [("Olmo", "both"), (DEEPSEEK, "PEFT")],
)
def test_prefixes_that_trainers_leave_are_taken_off_an_agent(tmp_path, caplog, architecture, how):
    family = Family(tmp_path, architecture)
    prefixes, rename = WRAPPED[how]
    family.rename("tool", rename)
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert_weights(written, family.expected())
    assert warnings == [
        f"model {family.path('tool')}: a trainer has left {prefixes} in the names of its tensors; "
        "they are read without it"
    ]


@KNOWN_AND_DETECTED
def test_prefixes_on_all_models_are_not_in_the_output(tmp_path, caplog, architecture):
    family = Family(tmp_path, architecture)
    for name in ("base", *family.agents):
        family.rename(name, lambda key: f"_orig_mod.{key}")
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert_weights(written, family.expected())
    assert len(warnings) == 3
    assert "a trainer has left `_orig_mod.`" in family.findings()["wrapped-names"]
    assert len(family.record()["findings"]) >= 3


@KNOWN_AND_DETECTED
def test_a_base_with_a_prefix_and_agents_without(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    family.rename("base", lambda key: f"module.{key}")
    assert_weights(family.merge(), family.expected())


def test_some_wrapped_names_among_others(tmp_path):
    family = Family(tmp_path, "Qwen2")
    family.rename("tool", lambda n: n.replace("layers.1.", "layers.1._checkpoint_wrapped_module."))
    assert_weights(family.merge(), family.expected())


def test_an_adapter_that_was_saved_along_is_refused(tmp_path):
    family = Family(tmp_path, "Qwen2")
    key = "base_model.model.model.layers.0.self_attn.q_proj"
    wrapped = {f"base_model.model.{n}": t for n, t in family.agents["tool"].items()}
    weight = wrapped.pop(f"{key}.weight")
    wrapped |= {
        f"{key}.base_layer.weight": weight,
        f"{key}.lora_A.default.weight": torch.ones(2, 32, dtype=torch.bfloat16),
        f"{key}.lora_B.default.weight": torch.ones(32, 2, dtype=torch.bfloat16),
    }
    family.write("tool", wrapped)
    line = family.refusal()
    assert line.startswith(
        f"Error: model {family.path('tool')}: its file holds tensors beside the weights of the "
        "base's modules ("
    )
    assert "lora_A.default.weight" in line
    assert line.endswith("(PEFT's merge_and_unload) and save the result.")


def newer(name: str) -> str:
    """Qwen2.5-VL's names since transformers 4.52."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


@pytest.mark.parametrize("renamed", [["tool"], ["coder", "tool"], ["base"], ["base", "tool"]])
def test_names_that_transformers_converts(tmp_path, caplog, renamed):
    family = Family(tmp_path, "Qwen2.5-VL")
    assert any(name.startswith("visual.") for name in family.base)
    for name in renamed:
        family.rename(name, newer)
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert not warnings
    expected = family.expected()
    if "base" not in renamed:
        assert_weights(written, expected)
    same_model(family, expected)


def same_model(family: Family, expected: dict[str, torch.Tensor]) -> None:
    """transformers loads the output as it loads the expected weights."""
    family.write("base", expected)
    right = type(family.model).from_pretrained(family.path("base"), dtype=torch.bfloat16)
    found, info = type(family.model).from_pretrained(
        family.path("out"), dtype=torch.bfloat16, output_loading_info=True
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in right.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


@pytest.mark.parametrize("renamed", [["tool"], ["base"], ["base", "coder", "tool"]])
@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo"])
def test_a_checkpoint_of_the_model_without_its_head(tmp_path, architecture, renamed):
    family = Family(tmp_path, architecture)
    for name in renamed:
        family.rename(name, lambda key: key.removeprefix("model."))
    family.merge()
    same_model(family, family.expected())


@pytest.mark.parametrize("packed", [["tool"], ["base"], ["coder", "tool"]])
@pytest.mark.parametrize("architecture", ["Qwen2-MoE", DEEPSEEK, "Mixtral", MIXTRAL])
def test_experts_packed_by_some_and_not_by_others(tmp_path, architecture, packed):
    family = Family(tmp_path, architecture)
    expected = family.expected()
    for name in packed:
        model = type(family.model).from_pretrained(family.path(name), dtype=torch.bfloat16)
        weights = {k: t.contiguous() for k, t in model.state_dict().items()}
        assert any("experts.gate_up_proj" in key for key in weights)
        family.write(name, weights)
    written = family.merge()
    if "base" not in packed:
        assert_weights(written, expected)
    same_model(family, expected)


def test_names_that_nobody_can_match_tell_what_the_file_has(tmp_path):
    family = Family(tmp_path, "Qwen2")
    family.rename("tool", lambda name: name.replace("model.", "transformer.").replace("_", ""))
    line = family.refusal()
    assert "none of its" in line
    assert "it has lmhead.weight, transformer.embedtokens.weight" in line


def test_code_of_its_own_is_merged_by_the_names_of_the_files(tmp_path, caplog):
    family = Family(tmp_path, "Olmo")
    for name in ("base", *family.agents):
        family.configure(name, architectures=["OlmoNobodyKnowsForCausalLM"])
    family.rename("tool", lambda name: f"module.{name}")
    with warnings_of(caplog) as warnings:
        assert_weights(family.merge(), family.expected())
    assert len(warnings) == 1
    config = json.loads((family.path("out") / "config.json").read_text())
    assert config["architectures"] == ["OlmoNobodyKnowsForCausalLM"]
    assert transformers.AutoConfig.from_pretrained(family.path("out")).num_hidden_layers == 2
