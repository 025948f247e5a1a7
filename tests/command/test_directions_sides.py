"""The side on which a matrix takes its input, told by transformers' modules."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import directions_reference as reference
import pytest
import torch
import transformers
from directions_reference import assert_close
from models import Weights, make_agent, merge_yaml, read_weights
from transformers import AutoModelForCausalLM

from mergekit_ram.kernels.matrices import Layout
from mergekit_ram.models.transformers_layout import Sides, layout_of

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
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4}


def gpt2() -> transformers.PreTrainedConfig:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 96}
    return transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def gpt_oss() -> transformers.PreTrainedConfig:
    return transformers.GptOssConfig(
        **COMMON, num_local_experts=4, head_dim=16, num_experts_per_tok=2
    )


def granite_moe() -> transformers.PreTrainedConfig:
    """Stores packed experts with their output first."""
    return transformers.GraniteMoeConfig(**COMMON, num_local_experts=4, num_experts_per_tok=2)


def qwen2_moe() -> transformers.PreTrainedConfig:
    """Stores every expert by itself, whatever its module holds."""
    return transformers.Qwen2MoeConfig(**COMMON, **ROUTED, shared_expert_intermediate_size=16)


def merged_through(
    folder: Path, config: Any, **changes: Any
) -> tuple[Weights, Weights, dict[str, Weights]]:
    """What ram_directions writes, the base and the agents."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder / "base")
    agents = {}
    for seed, share in enumerate((0.4, 0.7, 1.0), start=1):
        path = folder / f"agent{seed}"
        agents[str(path)] = make_agent(path, folder / "base", share, seed)
    recipe = {
        "merge_method": "ram_directions",
        "base_model": str(folder / "base"),
        "models": [{"model": path} for path in agents],
    }
    written = merge_yaml(recipe | changes, folder / "merged")
    return written, read_weights(folder / "base"), agents


def assert_side(
    written: torch.Tensor, base: Weights, agents: dict[str, Weights], name: str, input_first: bool
) -> None:
    """The tensor follows the formula on this side, and would be another one on the other."""
    held = {model: weights[name] for model, weights in agents.items()}
    right, wrong = (
        reference.merge_tensor(base[name], held, input_first=first)
        for first in (input_first, not input_first)
    )
    assert_close(written, right, base[name], list(held.values()), name)
    with pytest.raises(AssertionError, match=name):
        assert_close(written, wrong, base[name], list(held.values()), name)


def test_a_conv1d_takes_its_input_on_the_first_axis(tmp_path):
    written, base, agents = merged_through(tmp_path, gpt2())
    assert {name.removeprefix("transformer.") for name in written} == {
        name.removeprefix("transformer.") for name in base
    }
    for name, tensor in base.items():
        found = written.get(name, written.get(f"transformer.{name}"))
        if tensor.ndim > 1:
            is_conv1d = ".attn.c_" in name or ".mlp.c_" in name
            assert_side(found, base, agents, name, is_conv1d)
    assert sum(".c_" in name for name in written) == 16
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "merged")
    loaded.generate(torch.tensor([[5, 6]]), max_new_tokens=2, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize(("make", "first"), [(gpt_oss, True), (granite_moe, False)])
def test_packed_experts_of_both_orders_are_matrices_of_their_own(tmp_path, make, first):
    written, base, agents = merged_through(tmp_path, make())
    packed = {name: tensor for name, tensor in written.items() if tensor.ndim == 3}
    assert len(packed) == 4
    for name, tensor in packed.items():
        assert_side(tensor, base, agents, name, first)


def test_experts_that_are_stored_apart_are_matrices_as_they_are(tmp_path):
    written, base, agents = merged_through(tmp_path, qwen2_moe())
    experts = [name for name in base if ".experts." in name]
    assert len(experts) == 2 * 4 * 3
    for name in experts:
        assert_side(written[name], base, agents, name, False)


def test_biases_of_packed_experts_are_no_matrices(tmp_path):
    written, base, agents = merged_through(tmp_path, gpt_oss())
    name = "model.layers.1.mlp.experts.gate_up_proj_bias"
    assert written[name].shape == (4, 96)
    held = [weights[name].flatten() for weights in agents.values()]
    flat = reference.merge_tensor(base[name].flatten(), dict(enumerate(held)))
    assert_close(written[name].flatten(), flat, base[name].flatten(), held, name)


def test_the_same_model_stored_either_way_is_merged_into_the_same_function(tmp_path):
    """One network as Conv1D and as Linear layers, as [experts, in, out] and [experts, out, in]."""
    from mergekit.merge_methods import TensorGroup
    from mergekit.merge_methods.base import PerInputValues

    from mergekit_ram.tensors import merge_group

    settings = {"epsilon": 1e-5, "ridge": 0.3, "scale": 1.0}
    settings["weight"] = PerInputValues([(number, 1.0) for number in (1, 2, 3)])

    def merged(tensors: list[torch.Tensor], layout: Layout) -> torch.Tensor:
        group = TensorGroup.from_tensors(tensors, base_index=0)
        return merge_group(group, settings, layout=layout).tensor

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(7, 12, generator=generator)
    for shape in ((12, 20), (5, 12, 20)):
        base = torch.randn(shape, generator=generator)
        stored = [base + 1e-2 * torch.randn(shape, generator=generator) for _ in range(3)]
        first, last = Layout(input_last=False, packed=True), Layout(packed=True)
        tensors = [base, *stored]
        one = merged(tensors, first)
        turned = [tensor.transpose(-1, -2).contiguous() for tensor in tensors]
        other = merged(turned, last)
        torch.testing.assert_close(inputs @ one, inputs @ other.transpose(-1, -2))


def test_layers_of_any_number_and_prefix_are_found():
    config = gpt2()
    config.architectures = ["GPT2LMHeadModel"]
    sides = layout_of(config).sides
    first = Layout(input_last=False)
    for name in ("transformer.h.0.attn.c_attn", "h.17.attn.c_attn", "model.h.1.mlp.c_fc"):
        assert sides.find(f"{name}.weight") == first
    assert sides.find("transformer.wte.weight") == Layout()
    assert sides.find("transformer.h.0.ln_1.weight") is None
    assert sides.find("some.3.other.weight") is None


def test_one_ending_of_two_kinds_tells_nothing_under_another_prefix():
    sides = Sides({"a.0.fc.weight": Layout(), "b.0.fc.weight": Layout(input_last=False)})
    assert sides.find("b.3.fc.weight") == Layout(input_last=False)
    assert sides.find("c.3.fc.weight") is None


@pytest.mark.parametrize("architectures", [[], None, ["GPT2LMHeadModel", "B"]])
def test_a_model_that_cannot_be_built_has_no_layout(architectures, caplog):
    config = gpt2()
    config.architectures = architectures
    with caplog.at_level(logging.INFO, "mergekit_ram"):
        assert layout_of(config) is None
    assert "transformers cannot build this architecture" in caplog.text


def test_building_the_module_changes_neither_configuration_nor_random_numbers():
    config = gpt2()
    config.architectures = ["GPT2LMHeadModel"]
    before, state = config.to_dict(), torch.random.get_rng_state()
    layout_of(config)
    assert config.to_dict() == before
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("proj.weight", (4, 5), Layout()),
        ("experts.down_proj", (3, 4, 5), Layout(packed=True)),
        ("mixer.conv1d.weight", (4, 1, 3), Layout()),
        ("patch.weight", (4, 3, 2, 2), Layout()),
        ("time_mix_k", (1, 1, 5), Layout(has_matrices=False)),
        ("experts.down_proj_bias", (3, 5), Layout(has_matrices=False)),
        ("mixer.A_log", (4, 5), Layout(has_matrices=False)),
    ],
)
def test_without_a_module_name_and_shape_decide(name, shape, expected):
    from mergekit_ram.tensors import default_layout

    assert default_layout(name, shape) == expected
