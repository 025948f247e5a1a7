"""Counts that were recorded earlier, used again."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from models import Trio, forget_loaded_models, merge_yaml, read_weights, run_yaml, write_weights
from records import BOTH, record_of

from mergekit_ram.cli import main
from mergekit_ram.errors import PlanError
from mergekit_ram.plan import tasks
from mergekit_ram.record.schema import RECORD_NAME


def reusing(trio: Trio, **parameters: Any) -> dict[str, Any]:
    given = {"statistics": str(trio.folder / "counts" / RECORD_NAME), **parameters}
    return trio.config("ram_plus", parameters=given)


@BOTH
def test_recorded_counts_give_the_same_bytes_without_counting(trio: Trio, method, monkeypatch):
    merge_yaml(trio.config(method), trio.folder / "counts")
    expected = merge_yaml(
        trio.config("ram_plus", parameters={"r": 0.2, "alpha": 1.0}), trio.folder / "plain"
    )
    monkeypatch.setattr(tasks, "load_group", None)
    weights = merge_yaml(reusing(trio, r=0.2, alpha=1.0), trio.folder / "again")
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    assert record_of(trio.folder / "again").agents == record_of(trio.folder / "plain").agents


def test_a_sweep_may_write_over_the_folder_of_its_counts(trio: Trio):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    merge_yaml(reusing(trio, r=0.3), trio.folder / "counts")
    merge_yaml(reusing(trio, r=0.4), trio.folder / "counts")
    assert record_of(trio.folder / "counts").settings.r == 0.4


def change_weights(trio: Trio) -> None:
    folder = Path(next(iter(trio.agents)))
    weights = {name: tensor.float() for name, tensor in read_weights(folder).items()}
    write_weights(folder, weights, Path(trio.base_path))


def differing(trio: Trio, what: str) -> dict[str, Any]:
    config = reusing(trio)
    if what == "epsilon":
        config["parameters"]["epsilon"] = 1e-3
    elif what == "weight":
        config["models"][0]["parameters"] = {"weight": 0.5}
    elif what == "agents":
        del config["models"][0]
    elif what == "dtype":
        config["dtype"] = "float32"
    elif what == "layers":
        config.pop("models")
        models = [trio.base_path, *trio.agents]
        sources = [{"model": model, "layer_range": [0, 1]} for model in models]
        config["slices"] = [{"sources": sources}]
    elif what == "weights":
        change_weights(trio)
    return config


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("epsilon", "epsilon was 1e-05, and is 0.001 now"),
        ("weight", "coder was 1.0, and is 0.5 now"),
        ("agents", "coder is not merged now"),
        ("dtype", "loading (its layers, agents, dtype or vocabulary) was "),
        ("layers", "tensor model.layers.1."),
        ("weights", "coder, model.safetensors, size was "),
    ],
)
def test_counts_of_another_merge_are_refused(trio: Trio, what, message):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    result = run_yaml(differing(trio, what), trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert "they are not those of this merge: " in result.output
    assert message in result.output
    assert "Leave `statistics` out and the merge counts anew." in result.output
    assert not (trio.folder / "out").exists()


def test_estimates_are_refused_as_counts(trio: Trio, tmp_path):
    (tmp_path / "counts").mkdir()
    recipe = tmp_path / "merge.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    options = ["--sample", "0.5", "--json", str(tmp_path / "counts" / RECORD_NAME)]
    forget_loaded_models()
    assert CliRunner().invoke(main, ["inspect", str(recipe), *options]).exit_code == 0
    result = run_yaml(reusing(trio), tmp_path / "out")
    assert "they are an estimate from 0.5 of the rows" in result.output


def test_a_path_that_is_no_path_is_refused(trio: Trio):
    result = run_yaml(trio.config("ram_plus", parameters={"statistics": 3}), trio.folder / "out")
    assert "parameter 'statistics' must be the path of a ram_overlap.json" in result.output


def test_in_memory_there_are_no_recorded_counts():
    from mergekit.merge_methods import merge_state_dicts

    weights = {name: {"w": torch.rand(3)} for name in ("base", "a")}
    with pytest.raises(PlanError, match="'statistics' are those of a merge planned from files"):
        merge_state_dicts(weights, "ram_plus", base="base", parameters={"statistics": "x.json"})


def test_a_record_is_written_before_the_configuration_makes_it_a_model(trio: Trio, monkeypatch):
    from mergekit_ram.record.merge import MergeRecorder

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(MergeRecorder, "write", fail)
    result = run_yaml(trio.config("ram"), trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert "writing failed: disk full" in result.output
    assert not (trio.folder / "out" / "config.json").exists()


def test_counting_pass_and_merging_say_the_same_of_agents(trio: Trio, caplog):
    lines = []
    for method in ("ram", "ram_plus"):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="mergekit_ram"):
            trio.merge(method)
        lines.append([r.message.split(", λ")[0] for r in caplog.records if "density" in r.message])
    assert len(lines[0]) == 3
    assert lines[0] == lines[1]


def test_the_schema_is_printed_and_describes_its_fields():
    result = CliRunner().invoke(main, ["schema"])
    schema = json.loads(result.output)
    assert schema["properties"]["schema_version"]["const"] == 3
    assert "overlap_degree" in schema["$defs"]["TensorAgent"]["properties"]
    agent = schema["$defs"]["AgentRecord"]["properties"]
    assert all("description" in field for field in agent.values())
