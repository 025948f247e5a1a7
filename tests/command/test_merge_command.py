"""A YAML file through ``mergekit-yaml``, checked against the naive reference bit for bit."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import (
    Trio,
    Weights,
    make_agent,
    make_base,
    merge_yaml,
    output_dtype,
    read_weights,
    run_yaml,
    succeed,
    write_weights,
)
from reference import same_bits
from transformers import AutoModelForCausalLM

from mergekit_ram.names import labels


def assert_merged(written: Weights, expected: Weights, dtype: torch.dtype) -> None:
    assert set(written) == set(expected)
    for name, tensor in expected.items():
        assert same_bits(written[name], tensor.to(dtype)), name


def test_ram_plus_uses_the_ratios_of_the_whole_model(trio: Trio):
    written = trio.merge("ram_plus")
    assert_merged(written, reference.merge(trio.base, trio.agents, r=0.1), torch.bfloat16)
    per_tensor = {
        name: reference.merge(
            {name: tensor}, {k: {name: m[name]} for k, m in trio.agents.items()}, r=0.1
        )[name]
        for name, tensor in trio.base.items()
    }
    assert any(not same_bits(written[n], t.bfloat16()) for n, t in per_tensor.items())


def test_ram_is_merged_as_the_paper_says(trio: Trio):
    assert_merged(trio.merge("ram"), reference.merge(trio.base, trio.agents), torch.bfloat16)


def test_r_zero_equals_ram_byte_for_byte(trio: Trio):
    ram, zero = trio.merge("ram"), trio.merge("ram_plus", parameters={"r": 0})
    assert all(same_bits(ram[name], zero[name]) for name in ram)


def test_all_parameters_reach_the_arithmetic(trio: Trio):
    parameters = {"r": 0.3, "alpha": 0.5, "epsilon": 5e-3, "scale": 0.8, "overlap_power": 0.5}
    written = trio.merge("ram_plus", parameters=parameters)
    expected = reference.merge(trio.base, trio.agents, **parameters)
    assert_merged(written, expected, torch.bfloat16)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    epsilon=st.sampled_from([0.0, 1e-5, 5e-3]),
    r=st.sampled_from([0.0, 0.1, 0.7]),
    alpha=st.sampled_from([0.5, 2.0]),
)
def test_any_agents_of_any_dtype_follow_the_reference(
    tmp_path_factory, shares, dtype, epsilon, r, alpha
):
    folder = tmp_path_factory.mktemp("models")
    base = make_base(folder / "base", dtype)
    agents = {
        str(folder / f"a{n}"): make_agent(folder / f"a{n}", folder / "base", share, n + 1)
        for n, share in enumerate(shares)
    }
    parameters = {"epsilon": epsilon, "r": r, "alpha": alpha}
    written = merge_yaml(
        {
            "merge_method": "ram_plus",
            "base_model": str(folder / "base"),
            "models": [{"model": model} for model in agents],
            "parameters": parameters,
        },
        folder / "out",
    )
    assert_merged(written, reference.merge(base, agents, **parameters), dtype)


def test_the_yaml_result_equals_the_in_memory_result(trio: Trio):
    from mergekit.merge_methods import merge_state_dicts

    in_memory = merge_state_dicts({"base": trio.base, **trio.agents}, "ram_plus", base="base")
    written = trio.merge("ram_plus")
    assert all(same_bits(written[name], in_memory[name]) for name in in_memory)


def test_the_same_run_twice_gives_the_same_bytes(trio: Trio):
    trio.merge("ram_plus")
    first = (trio.folder / "merged" / "model.safetensors").read_bytes()
    trio.merge("ram_plus")
    assert (trio.folder / "merged" / "model.safetensors").read_bytes() == first


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
@pytest.mark.parametrize(
    "options",
    [
        ["--out-shard-size", "10K"],
        ["--async-write", "--write-threads", "2"],
        ["--low-cpu-memory"],
        ["--clone-tensors"],
        ["--device", "cpu"],
        ["--read-to-gpu"],
    ],
)
def test_options_change_no_byte(trio: Trio, method, options):
    plain, again = trio.merge(method), trio.merge(method, *options)
    assert set(plain) == set(again)
    assert all(same_bits(plain[name], again[name]) for name in plain)


def test_the_number_of_threads_changes_no_byte(trio: Trio):
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    files = []
    # In processes of their own: torch sets these numbers once in a process.
    for threads in ("1", "4"):
        out = trio.folder / f"{threads} threads"
        command = [sys.executable, "-m", "mergekit.scripts.run_yaml", str(recipe), str(out)]
        subprocess.run([*command, "--no-copy-tokenizer", "--num-threads", threads], check=True)
        files.append((out / "model.safetensors").read_bytes())
    assert files[0] == files[1]
    plain = trio.merge("ram_plus")
    assert all(same_bits(plain[n], t) for n, t in read_weights(out).items())


def test_sharded_inputs_give_the_same_bytes(trio: Trio):
    plain = trio.merge("ram_plus")
    for path in (trio.base_path, *trio.agents):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        (Path(path) / "model.safetensors").unlink()
        model.save_pretrained(path, max_shard_size="10KB")
        assert len(list(Path(path).glob("*.safetensors"))) > 1
    again = trio.merge("ram_plus")
    assert all(same_bits(plain[name], again[name]) for name in plain)


def test_the_order_of_agents_changes_no_more_than_rounding(trio: Trio):
    config = trio.config("ram_plus", out_dtype="float32")
    plain = merge_yaml(config, trio.folder / "merged")
    config["models"].reverse()
    config["models"].insert(1, {"model": trio.base_path})
    again = merge_yaml(config, trio.folder / "merged")
    for name in plain:
        torch.testing.assert_close(plain[name], again[name], rtol=2e-7, atol=1e-9)


def test_float32_output_over_bf16_agents_is_not_rounded_before(trio: Trio):
    for method, r in (("ram", 0.0), ("ram_plus", 0.1)):
        written = trio.merge(method, out_dtype="float32")
        assert_merged(written, reference.merge(trio.base, trio.agents, r=r), torch.float32)
        assert any(not same_bits(t.bfloat16().float(), t) for t in written.values())
        assert output_dtype(trio.folder / "merged") == "float32"


@pytest.mark.parametrize("dtypes", [{}, {"dtype": "float32"}, {"out_dtype": "float16"}])
def test_the_output_dtype_is_that_of_mergekits_linear(trio: Trio, dtypes):
    linear = trio.config("linear", parameters={"weight": 1.0}, **dtypes)
    linear["models"].append({"model": trio.base_path})
    theirs = merge_yaml(linear, trio.folder / "linear")
    ours = trio.merge("ram_plus", **dtypes)
    assert {n: t.dtype for n, t in ours.items()} == {n: t.dtype for n, t in theirs.items()}


def test_rescale_by_hand_for_every_agent_counts_nothing(trio: Trio):
    config = trio.config("ram_plus")
    factors = dict(zip(trio.agents, (1.3, 1.0, 0.8), strict=True))
    for model in config["models"]:
        model["parameters"] = {"rescale": factors[model["model"]]}
    result = run_yaml(config, trio.folder / "merged", "--no-copy-tokenizer")
    succeed(result)
    assert "Counting overlaps" not in result.stderr
    written = read_weights(trio.folder / "merged")
    for name, base in trio.base.items():
        tensors = {model: weights[name] for model, weights in trio.agents.items()}
        expected = reference.merge_tensor(base, tensors, rescale=factors)
        assert same_bits(written[name], expected.bfloat16())


def test_parameters_of_single_tensors_are_those_of_mergekits_filters(trio: Trio):
    _, *others = trio.agents
    config = trio.config("ram_plus")
    config["models"][0]["parameters"] = {
        "weight": [{"filter": "mlp", "value": 0.0}, {"value": 1.0}]
    }
    written = merge_yaml(config, trio.folder / "merged")
    kept = {
        model: {n: t for n, t in weights.items() if model in others or "mlp" not in n}
        for model, weights in trio.agents.items()
    }
    assert_merged(written, reference.merge(trio.base, kept, r=0.1), torch.bfloat16)


def test_the_counting_pass_shows_a_bar_and_a_line_per_agent(trio: Trio, caplog):
    with caplog.at_level(logging.INFO, logger="mergekit_ram"):
        result = run_yaml(trio.config("ram_plus"), trio.folder / "out", "--no-copy-tokenizer")
    succeed(result)
    tensors = len(trio.base)
    assert f"Counting overlaps: {tensors} of {tensors} tensors, 100 %" in result.stderr
    counts = reference.count(trio.base, trio.agents)
    lines = [record.message for record in caplog.records if record.message.startswith("agent ")]
    assert len(lines) == 3
    short = labels(list(trio.agents))
    for line, name, (model, (unique, *more)) in zip(
        lines, short, counts.overlap_degree.items(), strict=True
    ):
        density = 100 * (unique + sum(more)) / counts.parameters
        assert line == (
            f"agent {name}: density {density:.2f} %, shared {sum(more):,}, unique {unique:,}, "
            f"ρ {counts.ratio(model):.4g}, λ {counts.rescale(model, 0.1, 2.0):.4f}"
        )


def test_the_line_of_an_agent_shows_the_factor_that_is_used(trio: Trio, caplog):
    config = trio.config("ram_plus")
    coder, tool, memory = config["models"]
    coder["parameters"] = {"rescale": 1.3}
    tool["parameters"] = {"weight": 0}
    with caplog.at_level(logging.INFO, logger="mergekit_ram"):
        merge_yaml(config, trio.folder / "merged")
    lines = {r.message.split(":")[0]: r.message for r in caplog.records}
    first, second, third = labels([model["model"] for model in (coder, tool, memory)])
    assert lines[f"agent {first}"].endswith("λ 1.3000")
    assert lines[f"agent {second}"].endswith("takes no part, its weight is 0 everywhere")
    assert "λ 1." in lines[f"agent {third}"]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_quiet_is_silent(trio: Trio):
    config = trio.config("ram_plus")
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer", "--quiet")
    succeed(result)
    assert "Counting overlaps" not in result.output


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
@pytest.mark.parametrize("culprit", ["base", "tool"])
def test_nan_ends_in_one_line_and_no_loadable_model(trio: Trio, method, culprit):
    folder = trio.folder / culprit
    weights = read_weights(folder)
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 5] = float("nan")
    write_weights(folder, weights, trio.folder / "base")
    result = run_yaml(trio.config(method), trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: model {folder}, tensor {name}: holds nan; a merge with it would be wrong. "
        "Repair or re-download this checkpoint."
    )
    # A folder that was made for nothing is removed again.
    assert not (trio.folder / "out").exists()


def test_a_merge_without_base_says_what_to_write(trio: Trio):
    config = trio.config("ram_plus")
    del config["base_model"]
    result = run_yaml(config, trio.folder / "out")
    assert result.exit_code == 1
    assert "Error: ram_plus: Merge method requires a base input" in result.output
    assert "The method needs `base_model:`" in result.output


def test_transformers_loads_the_merge_and_generates(trio: Trio):
    trio.merge("ram_plus")
    model = AutoModelForCausalLM.from_pretrained(trio.folder / "merged")
    tokens = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, do_sample=False)
    assert tokens.shape == (1, 8)
    assert model.dtype == torch.bfloat16


def test_the_inputs_are_the_same_bytes_afterwards(trio: Trio):
    files = sorted(trio.folder.glob("*/model.safetensors"))
    before = [file.read_bytes() for file in files]
    trio.merge("ram_plus", dtype="float32")
    assert [file.read_bytes() for file in files] == before
