"""What is merged all the same is warned of where it looks like a mistake."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import reference
import torch
import yaml
from click.testing import CliRunner
from models import Trio, make_agent, read_weights, run_yaml, succeed, write_weights
from refusals import BOTH, agent
from safetensors.torch import save_file


@BOTH
def test_other_entries_of_a_pickled_checkpoint_are_no_matter(trio: Trio, method):
    plain = trio.merge(method)
    weights = read_weights(agent(trio))
    (agent(trio) / "model.safetensors").unlink()
    torch.save({**weights, "epoch": 3}, agent(trio) / "pytorch_model.bin")
    again = trio.merge(method)
    assert all(torch.equal(again[name], plain[name]) for name in plain)


def test_a_program_that_calls_run_merge_gets_the_checks_too(trio: Trio):
    (agent(trio) / "model.safetensors").write_bytes(b"")
    code = """
import sys, yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

config = MergeConfiguration.model_validate(yaml.safe_load(open(sys.argv[1])))
try:
    run_merge(config, sys.argv[2], MergeOptions())
except Exception as error:
    print(type(error).__name__, error)
"""
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram")))
    command = [sys.executable, "-c", code, str(recipe), str(trio.folder / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith(f"InputError model {agent(trio)}: cannot read")


@BOTH
def test_a_shared_parameter_under_a_model_is_warned_of(trio: Trio, method, caplog):
    models = trio.config(method)["models"]
    models[0]["parameters"] = {"epsilon": 0.1, "weight": 1.0}
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, models=models)
    assert [r.message for r in caplog.records] == [
        "parameter 'epsilon' has no effect under a model: it is one of the whole merge; write it "
        "under `parameters:` at the top, of a module, or of a slice"
    ]


@BOTH
def test_an_unknown_parameter_is_warned_of_with_the_nearest_name(trio: Trio, method, caplog):
    models = trio.config(method)["models"]
    models[0]["parameters"] = {"wieght": 1.0}
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, models=models, parameters={"epsilom": 1, "density": 0.5})
    warnings = [r.message for r in caplog.records if "has no effect" in r.message]
    known = "epsilon, scale, weight, overlap_power"
    known += ", r, alpha, rescale, statistics" if method == "ram_plus" else ""
    assert sorted(warnings) == [
        f"parameter 'density' has no effect: {method} does not know it; it knows {known}.",
        f"parameter 'epsilom' has no effect: {method} does not know it; did you mean 'epsilon'?",
        f"parameter 'wieght' has no effect: {method} does not know it; did you mean 'weight'?",
    ]


@BOTH
def test_rounding_the_inputs_is_warned_of(tmp_path, method, caplog):
    trio = Trio(tmp_path, dtype=torch.float32)
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, dtype="bfloat16")
    warnings = [r.message for r in caplog.records if "rounded" in r.message]
    assert len(warnings) == 4
    assert warnings[0] == (
        f"model {next(iter(trio.agents))}: stored in torch.float32 and rounded to torch.bfloat16 "
        "by `dtype:` before it is subtracted from the base, so that small updates vanish; use "
        "`out_dtype:` to round the result instead"
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, out_dtype="bfloat16")
    assert not [r.message for r in caplog.records if "rounded" in r.message]


@BOTH
def test_an_agent_that_is_the_base_is_warned_of(trio: Trio, method, caplog):
    write_weights(agent(trio), trio.base, trio.folder / "base")
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method)
    (message,) = [r.message for r in caplog.records if str(agent(trio)) in r.message]
    assert message == (
        f"{agent(trio)} equals the base within ε and contributes nothing; such a folder is often "
        "an export without its LoRA adapter."
    )


@BOTH
def test_an_agent_of_another_base_is_warned_of_with_its_density(trio: Trio, method, caplog):
    stranger = make_agent(agent(trio), trio.folder / "base", 1.0, seed=9)
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method)
    counts = reference.count(trio.base, {"stranger": stranger})
    density = 100 * counts.overlap_degree["stranger"][0] / counts.parameters
    (message,) = [r.message for r in caplog.records if str(agent(trio)) in r.message]
    assert 95 < density < 100
    assert message == (
        f"{agent(trio)} ({density:.1f} %) changed nearly all parameters: this is no sparse update, "
        "or not the base of its training."
    )


@BOTH
def test_usual_agents_are_not_warned_of(trio: Trio, method, caplog):
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method)
    assert not caplog.records


def test_raw_checkpoints_are_checked_too(tmp_path):
    from mergekit.scripts.merge_raw_pytorch import main

    save_file({"w": torch.zeros(3)}, tmp_path / "base.safetensors")
    save_file({"w": torch.ones(4)}, tmp_path / "agent.safetensors")
    base, other = str(tmp_path / "base.safetensors"), str(tmp_path / "agent.safetensors")
    recipe = tmp_path / "raw.yml"
    recipe.write_text(
        yaml.safe_dump({"merge_method": "ram", "base_model": base, "models": [{"model": other}]})
    )
    result = CliRunner().invoke(main, [str(recipe), str(tmp_path / "out")])
    assert result.exit_code == 1
    assert (
        f"Error: model {other}, tensor w: shape [4], but the base {base} has [3]" in result.output
    )
    assert not (tmp_path / "out").exists()


def test_other_methods_are_left_alone(trio: Trio, caplog):
    config = trio.config("ties", parameters={"weight": 1.0, "epsilom": 1})
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        succeed(run_yaml(config, trio.folder / "out", "--no-copy-tokenizer"))
    assert not caplog.records
    (agent(trio) / "model.safetensors").write_bytes(b"")
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    assert type(result.exception).__name__ == "SafetensorError"


def test_warnings_are_errors_where_the_environment_says_so(trio: Trio, monkeypatch):
    monkeypatch.setenv("MERGEKIT_RAM_STRICT", "1")
    succeed(run_yaml(trio.config("ram"), trio.folder / "plain", "--no-copy-tokenizer"))
    for changes, text in (
        ({"parameters": {"epsilom": 1}}, "parameter 'epsilom' has no effect: "),
        ({"r": 0.2}, "key 'r' at the top has no effect: "),
        ({"parameters": {"scale": 0}}, "scale or every agent's weight is 0: "),
        ({"parameters": {"r": 9}}, "λ of "),
    ):
        config = trio.config("ram_plus", **changes)
        result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
        assert result.exit_code == 1
        line = result.output.splitlines()[-1]
        assert line.startswith(f"Error: {text}")
        assert line.endswith("MERGEKIT_RAM_STRICT makes this warning an error.")
        assert not (trio.folder / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"parameters": {"alpa": 1}}, "did you mean 'alpha'?"),
        ({"parameters": {"density": 0.5}}, "ram_plus does not know it"),
        ({"alpha": 1}, "write it under `parameters:` at the top"),
    ],
)
def test_a_merge_by_units_refuses_parameters_without_effect(trio: Trio, changes, text):
    from mergekit_ram.cli import main

    recipe = trio.folder / "merge.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus", **changes)))
    result = CliRunner().invoke(main, ["merge", str(recipe), str(trio.folder / "out")])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {recipe}: ")
    assert text in result.output
    assert not (trio.folder / "out").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--cuda"], "--cuda"),
        (["--gpu-rich"], "--gpu-rich"),
        (["--multi-gpu"], "--multi-gpu"),
        (["--device", "cuda"], "--device cuda"),
    ],
)
def test_an_option_for_gpus_is_refused_where_there_is_none(trio: Trio, monkeypatch, options, named):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    result = run_yaml(trio.config("ram"), trio.folder / "out", *options)
    assert result.exit_code == 1
    line = result.output.splitlines()[-1]
    assert line.startswith(f"Error: {named}: torch {torch.__version__} finds no GPU")
    assert not (trio.folder / "out").exists()


def test_lazy_unpickling_is_refused_where_it_fails(trio: Trio, monkeypatch):
    from mergekit.io import loader

    def fail(*_: object, **__: object) -> None:
        raise ValueError("Unsupported type")

    monkeypatch.setattr(loader, "LazyPickleLoader", fail)
    result = run_yaml(trio.config("ram"), trio.folder / "out", "--lazy-unpickle")
    assert result.exit_code == 1
    line = result.output.splitlines()[-1]
    assert line.startswith("Error: --lazy-unpickle: mergekit cannot read .bin files lazily with")
    assert line.endswith("Unsupported type. Leave the option out.")
