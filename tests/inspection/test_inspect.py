"""What ``mergekit-ram inspect`` says where, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from inspecting import run_inspect
from mergekit.config import MergeConfiguration
from models import Trio, read_weights, write_weights

import mergekit_ram
from mergekit_ram import inspect
from mergekit_ram.cli import main
from mergekit_ram.errors import InputError
from mergekit_ram.record.schema import OverlapRecord


def test_nothing_is_written(trio: Trio, tmp_path):
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    run_inspect(trio.config("ram_plus"), tmp_path)
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after.keys() - before.keys() == {tmp_path / "inspect.yml"}
    assert all(after[file] == content for file, content in before.items())


def test_results_go_to_the_standard_output_and_the_rest_does_not(trio: Trio, tmp_path):
    result = run_inspect(trio.config("ram_plus"), tmp_path, "--json", "-")
    assert json.loads(result.stdout)["parameters"] == sum(t.numel() for t in trio.base.values())
    assert "Counting overlaps" in result.stderr
    assert "MB/s" in result.stderr
    result = run_inspect(
        trio.config("ram_plus"), tmp_path, "--quiet", "--json", str(tmp_path / "o.json")
    )
    assert result.stdout.startswith("ram_plus over")
    assert result.stderr == f"wrote {tmp_path / 'o.json'}\n"
    assert OverlapRecord.model_validate_json((tmp_path / "o.json").read_text()).kind == "inspection"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("merge_method: [", "cannot be read as a configuration of mergekit"),
        ("merge_method: ties\nmodels: [{model: ./a}]", "names no `base_model:`"),
    ],
)
def test_configurations_that_cannot_be_inspected_are_refused(tmp_path, text, message):
    source = tmp_path / "merge.yml"
    source.write_text(text)
    result = run_inspect(source, tmp_path)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output


def test_broken_models_are_refused_in_one_line(trio: Trio, tmp_path):
    coder = next(iter(trio.agents))
    weights = read_weights(Path(coder))
    weights["model.norm.weight"][3] = float("nan")
    write_weights(Path(coder), weights, Path(trio.base_path))
    result = run_inspect(trio.config("ram"), tmp_path, "--quiet")
    assert (result.exit_code, result.output) == (
        1,
        f"Error: model {coder}, tensor model.norm.weight: holds nan; a merge with it would be "
        "wrong. Repair or re-download this checkpoint.\n",
    )


def test_options_out_of_range_are_refused(trio: Trio, tmp_path):
    for option in (("--sample", "1"), ("--epsilon", "-1"), ("--epsilon",)):
        assert run_inspect(trio.config("ram"), tmp_path, *option).exit_code == 2


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
def test_the_plugin_switched_off_is_an_error(trio: Trio, tmp_path, monkeypatch, method):
    monkeypatch.setenv("MERGEKIT_RAM_DISABLE", "1")
    mergekit_ram.uninstall()
    result = run_inspect(trio.config(method), tmp_path)
    monkeypatch.undo()
    mergekit_ram.install()
    assert result.exit_code == 1
    assert "switched off by MERGEKIT_RAM_DISABLE" in result.output


def test_the_help_teaches():
    text = CliRunner().invoke(main, ["inspect", "--help"]).output
    for word in ("--epsilon E [E ...]", "--sample", "--device", "Exit codes", "mergekit-yaml"):
        assert word in text
    assert "--out-shard-size" not in text


def test_results_without_a_place_are_refused_before_anything_is_read(
    trio: Trio, tmp_path, monkeypatch
):
    from mergekit_ram.inspection import inspect as inspection

    monkeypatch.setattr(inspection, "inspect", None)
    for option in ("--json", "--html"):
        missing = tmp_path / "missing" / "out"
        result = run_inspect(trio.config("ram"), tmp_path, option, str(missing))
        assert result.exit_code == 1
        assert result.output.startswith(f"Error: {missing} cannot be written")


@pytest.mark.parametrize("sample", [None, 0.99])
def test_a_bad_number_in_one_of_them_is_told_by_its_name(trio: Trio, sample):
    name = "model.layers.1.self_attn.k_proj.bias"
    folder = Path(trio.config("ram_plus")["models"][1]["model"])
    weights = dict(trio.agents[str(folder)])
    weights[name] = torch.full_like(weights[name], float("nan"))
    write_weights(folder, weights, Path(trio.config("ram_plus")["base_model"]))
    with pytest.raises(InputError, match=f"model .*{folder.name}, tensor {name}: holds nan"):
        inspect(MergeConfiguration.model_validate(trio.config("ram_plus")), sample=sample)


def test_a_result_that_the_output_cannot_hold_is_told_by_its_name(trio: Trio):
    config = trio.config("ram_plus")
    name = "model.layers.0.self_attn.k_proj.bias"
    base = {n: t.clone() for n, t in trio.base.items()}
    base[name] = torch.full_like(base[name], 65500.0)
    write_weights(Path(config["base_model"]), base, Path(config["base_model"]))
    for model in config["models"]:
        folder = Path(model["model"])
        write_weights(folder, trio.agents[str(folder)] | {name: base[name] + 512.0}, folder)
    config |= {"parameters": {"scale": 2.0}, "out_dtype": "float16"}
    with pytest.raises(InputError, match=f"tensor {name}: .*float16"):
        inspect(MergeConfiguration.model_validate(config))
