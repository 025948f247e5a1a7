"""A tensor that nobody changed is kept bit for bit, whatever it holds and whatever its dtype."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from families import Family, assert_weights, warnings_of
from hypothesis import given, settings
from mergekit.merge_methods import merge_state_dicts
from models import Weights
from reference import same_bits
from test_references import adapter

KEPT = {
    "model.bounds": torch.tensor([-torch.inf, 1.0, torch.inf]).bfloat16(),
    "model.odd": torch.tensor([torch.nan, 0.5]).bfloat16(),
    "model.steps": torch.tensor([7]),
    "model.mask": torch.tensor([True, False]),
    "model.packed": torch.tensor([[0.5, 2.0]]).to(torch.float8_e4m3fn),
    "model.bytes": torch.arange(16, dtype=torch.uint8),
    "model.int4": torch.arange(3, dtype=torch.int32),
}
QUANTISED = {"quantization_config": {"quant_method": "compressed-tensors"}}
MODELS = ("base", "coder", "tool")


def add(family: Family, name: str, more: Weights) -> None:
    own = family.base if name == "base" else family.agents[name]
    family.write(name, own | {key: tensor.clone() for key, tensor in more.items()})


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2, tied", "Qwen3-MoE", "Qwen2.5-VL"])
def test_what_nobody_changed_is_written_as_it_is(tmp_path, caplog, architecture):
    family = Family(tmp_path, architecture)
    for name in MODELS:
        add(family, name, KEPT)
    with warnings_of(caplog) as warnings:
        written = family.merge(dtype="bfloat16")
    assert_weights(written, family.expected() | KEPT)
    (line,) = warnings
    assert line.endswith("base: tensor model.odd holds NaN in all models, and keeps it")
    assert family.inspect().exit_code == 0


@pytest.mark.parametrize("method", ["ram", "ram_directions"])
def test_other_methods_keep_it_too_in_a_wider_output(tmp_path, method):
    family = Family(tmp_path)
    for name in MODELS:
        add(family, name, KEPT)
    written = family.merge(merge_method=method, out_dtype="float32")
    for name, tensor in KEPT.items():
        dtype = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
        assert same_bits(written[name], tensor.to(dtype)), name


@pytest.mark.parametrize("key", ["model.packed", "model.bytes", "model.steps"])
def test_what_cannot_be_merged_and_differs_is_refused_by_name(tmp_path, key):
    family = Family(tmp_path)
    for name in MODELS:
        add(family, name, {key: KEPT[key]})
    add(family, "tool", {key: torch.zeros_like(KEPT[key])})
    line = family.refusal()
    assert f"tensor {key}: {KEPT[key].dtype} values are not merged, and here they differ" in line
    assert "Dequantise weights to bfloat16" in line


def pack(weights: Weights) -> Weights:
    """Experts in four bits, with their scales, as others leave them beside trained attention."""
    experts = {name: tensor for name, tensor in weights.items() if ".experts." in name}
    assert experts
    found = {name: tensor for name, tensor in weights.items() if name not in experts}
    for name, tensor in experts.items():
        found[f"{name}_packed"] = torch.ones(tensor.shape[0], 2, dtype=torch.int32)
        found[f"{name}_scale"] = torch.full((tensor.shape[0], 1), 0.5, dtype=torch.bfloat16)
    return found


@pytest.mark.parametrize("architecture", ["Qwen3-MoE", "Mixtral"])
def test_quantised_experts_beside_trained_attention_are_copied(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    base = pack(family.base)
    agents = {name: pack(own) for name, own in family.agents.items()}
    for name, own in {"base": base, **agents}.items():
        family.write(name, own)
        family.configure(name, **QUANTISED)
    assert_weights(family.merge(), family.expected(base, agents))
    config = json.loads((family.path("out") / "config.json").read_text())
    assert config["quantization_config"] == QUANTISED["quantization_config"]


def test_a_quantised_agent_of_another_base_is_refused_by_its_tensors(tmp_path):
    family = Family(tmp_path, "Qwen3-MoE")
    family.write("tool", pack(family.agents["tool"]))
    family.configure("tool", **QUANTISED)
    line = family.refusal()
    assert line.startswith(
        f"Error: model {family.path('tool')}: its weights are quantised (compressed-tensors; tensor"
    )
    assert line.endswith("merge the bfloat16, float16 or float32 originals.")


def test_a_setting_left_over_from_quantisation_is_not_passed_on(tmp_path):
    family = Family(tmp_path)
    for name in MODELS:
        family.configure(name, **QUANTISED)
    assert_weights(family.merge(), family.expected())
    assert "quantization_config" not in (family.path("out") / "config.json").read_text()


def test_a_quantised_base_under_an_adapter_is_the_reason(tmp_path):
    family = Family(tmp_path, "Qwen3-MoE")
    family.write("base", pack(family.base))
    family.configure("base", **QUANTISED)
    base: Path = family.path("base")
    model = f"{base}+{adapter(Family(tmp_path / 'other'), 'lo')}"
    line = family.refusal("--lora-merge-cache", str(tmp_path / "c"), models=[{"model": model}])
    assert line.startswith(
        f"Error: model {model}: the base {base} is quantised (compressed-tensors), and an adapter "
        "cannot be merged into it. Give the 16-bit original"
    )


@settings(max_examples=60, deadline=None)
@given(
    bits=st.binary(min_size=8, max_size=64).filter(lambda bits: len(bits) % 8 == 0),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    method=st.sampled_from(["ram", "ram_plus", "ram_directions"]),
    agents=st.integers(1, 3),
)
def test_any_bits_that_all_models_hold_are_the_merge(bits, dtype, method, agents):
    kept = torch.frombuffer(bytearray(bits), dtype=torch.uint8).view(dtype)
    other = torch.zeros(4, dtype=dtype)
    models = {"base": {"kept": kept, "other": other}}
    models |= {str(n): {"kept": kept.clone(), "other": other + n + 1} for n in range(agents)}
    merged = merge_state_dicts(models, method, base="base")
    assert same_bits(merged["kept"], kept)
    assert merged["kept"].data_ptr() != kept.data_ptr()
