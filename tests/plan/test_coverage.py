"""The output is the whole base, and every model is in it or named."""

from __future__ import annotations

import json

import pytest
import torch
from families import Family, assert_weights, warnings_of

DEEPSEEK = "DeepSeek-V3, first layer dense"


def extra(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.5, dtype=torch.bfloat16)


def test_experts_that_only_some_layers_have_are_merged(tmp_path):
    family = Family(tmp_path, DEEPSEEK)
    assert any(".experts." in name for name in family.base)
    assert_weights(family.merge(), family.expected())
    record = family.record()
    assert record["parameters"] == sum(t.numel() for t in family.base.values())
    counts = {agent["model"].split("/")[-1]: agent["rescale"] for agent in record["agents"]}
    assert counts == pytest.approx(rescales(family))


def rescales(family: Family) -> dict[str, float]:
    import reference

    counts = reference.count(family.base, family.agents)
    return {name: counts.rescale(name, 0.1, 2.0) for name in family.agents}


def test_gradients_run_over_the_layers_of_a_detected_architecture(tmp_path):
    family = Family(tmp_path, DEEPSEEK)
    written = family.merge(parameters={"weight": [0.0, 1.0]})
    first = {n for n in family.base if ".layers.0." in n}
    assert first
    for name in first:
        assert torch.equal(written[name], family.base[name]), name
    last = "model.layers.1.mlp.experts.0.gate_proj.weight"
    assert torch.count_nonzero(written[last] != family.base[last])


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo", DEEPSEEK])
def test_tensors_of_the_base_that_no_architecture_lists_are_merged(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    more = {"model.layers.2.eh_proj.weight": extra(4, 8), "model.layers.2.enorm.weight": extra(8)}
    for name in ("base", "coder", "tool"):
        own = family.base if name == "base" else family.agents[name]
        own |= {key: tensor.clone() for key, tensor in more.items()}
        if name == "coder":
            own["model.layers.2.enorm.weight"][3] = 2.0
        family.write(name, own)
    written = family.merge()
    assert written["model.layers.2.enorm.weight"][3] > 1.9
    assert_weights(written, family.expected())


def test_modules_that_leave_a_part_of_the_base_out_are_refused(tmp_path):
    family = Family(tmp_path, "Mistral3")
    models = family.config()["models"]
    line = family.refusal(models=None, modules={"text_decoder": {"models": models}})
    lost = [n for n in family.base if not n.startswith("language_model.")]
    parameters = sum(family.base[name].numel() for name in lost)
    assert line == (
        f"Error: model {family.path('base')}: {len(lost)} tensors ({parameters:,} parameters) "
        "would be missing from the output, since no module or slice of the configuration holds "
        f"them: {', '.join(sorted(lost)[:3])} and {len(lost) - 3} more. List the models under "
        "`models:`, where every tensor of the base is merged."
    )


def test_layers_that_slices_leave_out_are_nobodys_loss(tmp_path, caplog):
    family = Family(tmp_path, "Olmo")
    sources = [
        {"model": model["model"], "layer_range": [0, 1]}
        for model in [{"model": family.config()["base_model"]}, *family.config()["models"]]
    ]
    with warnings_of(caplog) as warnings:
        written = family.merge(models=None, slices=[{"sources": sources}] * 2)
    assert not warnings
    names = {name.replace(".layers.1.", ".layers.0.") for name in family.base}
    assert {name.replace(".layers.1.", ".layers.0.") for name in written} == names
    config = json.loads((family.path("out") / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    for name in written:
        if ".layers.1." in name:
            assert torch.equal(written[name], written[name.replace(".layers.1.", ".layers.0.")])


def test_slices_over_unlike_layers_are_refused(tmp_path):
    family = Family(tmp_path, DEEPSEEK)
    paths = [family.path(name) for name in ("base", *family.agents)]
    sources = [{"model": str(path), "layer_range": [1, 2]} for path in paths]
    line = family.refusal(models=None, slices=[{"sources": sources}])
    assert line == (
        f"Error: slices put layer 1 of {paths[0]} in place of layer 0, and the layers of "
        "DeepseekV3ForCausalLM are not all alike. List the models under `models:`, or keep every "
        "layer at its place."
    )


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo", DEEPSEEK])
def test_tensors_that_only_agents_have_are_named_in_one_warning(tmp_path, caplog, architecture):
    family = Family(tmp_path, architecture)
    head = {"v_head.summary.weight": extra(1, 32), "v_head.summary.bias": extra(1)}
    for name, own in family.agents.items():
        family.write(name, own | head)
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert_weights(written, family.expected())
    assert warnings == [
        "tensors that the base does not have take no part and are not in the output: "
        f"{family.path('coder')}, {family.path('tool')}: v_head.summary.bias, "
        "v_head.summary.weight (33 parameters)"
    ]
    assert family.findings()["agents-only"] == warnings[0] + "."


def test_buffers_that_transformers_computes_are_not_worth_a_word(tmp_path, caplog):
    family = Family(tmp_path, "Llama")
    for name in ("base", "tool"):
        own = family.base if name == "base" else family.agents[name]
        family.write(name, own | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    with warnings_of(caplog) as warnings:
        assert_weights(family.merge(), family.expected())
    assert not warnings


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo", DEEPSEEK])
def test_an_agent_that_lacks_what_transformers_needs_is_refused(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    gone = "model.layers.1.self_attn.o_proj.weight"
    del family.agents["tool"][gone]
    family.write("tool", family.agents["tool"])
    assert family.refusal().startswith(
        f"Error: model {family.path('tool')}: tensor {gone} is missing, and the architecture "
        "requires it."
    )


def test_an_agent_that_lacks_tensors_where_nothing_tells_what_is_needed_is_named(tmp_path, caplog):
    family = Family(tmp_path, "Olmo")
    for name in ("base", *family.agents):
        family.configure(name, hidden_act="nobody_knows")
    gone = "model.layers.1.self_attn.o_proj.weight"
    del family.agents["tool"][gone]
    family.write("tool", family.agents["tool"])
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert_weights(written, family.expected())
    assert warnings == [
        f"model {family.path('tool')}: it lacks 1 tensors of the base, where it counts as "
        f"unchanged: {gone}"
    ]
    assert family.findings()["agent-lacks-tensors"] == warnings[0] + "."


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo", DEEPSEEK])
def test_an_agent_that_feeds_nothing_is_refused(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    family.rename("tool", lambda name: f"actor.net.{name}")
    line = family.refusal()
    assert line.startswith(
        f"Error: model {family.path('tool')}: none of its {len(family.base)} tensors has a name of "
        "the base's: it has actor.net."
    )
    assert line.endswith(
        "Without the prefix actor.net. they would fit: save the model without the module around "
        "it, or rename its tensors."
    )


def test_a_base_that_lacks_what_transformers_needs_is_refused(tmp_path):
    family = Family(tmp_path, DEEPSEEK)
    for name in ("base", *family.agents):
        own = family.base if name == "base" else family.agents[name]
        family.write(name, {key: tensor for key, tensor in own.items() if ".o_proj" not in key})
    line = family.refusal()
    assert line.startswith(
        f"Error: model {family.path('base')}: tensor model.layers.0.self_attn.o_proj.weight is "
        "missing, and the architecture requires it."
    )
