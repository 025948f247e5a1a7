"""What a merge leaves behind about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from models import Trio, merge_yaml, read_weights, write_weights
from records import BOTH, record_of, unfolded
from reference import count
from safetensors.torch import save_file

from mergekit_ram.cli import main
from mergekit_ram.plan import tasks
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord


@BOTH
def test_a_merge_leaves_its_counts_behind(trio: Trio, method):
    trio.merge(method)
    record = record_of(trio.folder / "merged")
    expected = count(trio.base, trio.agents)
    assert (record.kind, record.merge_method) == ("merge", method)
    assert (record.base, record.out_dtype) == (trio.base_path, "bfloat16")
    assert record.parameters == expected.parameters
    for agent in record.agents:
        assert list(agent.overlap_degree) == expected.overlap_degree[agent.model]
        factor = expected.rescale(agent.model, 0.1, 2.0) if method == "ram_plus" else 1.0
        assert agent.rescale == factor
        assert agent.energy is None
    assert record.pairwise is None
    assert {tensor.name for tensor in record.tensors} == trio.base.keys()
    assert {model.model for model in record.models} == {trio.base_path, *trio.agents}
    assert record.seconds > 0


def test_ram_counts_while_it_merges(trio: Trio, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pass of its own")

    monkeypatch.setattr(tasks, "count_group", refuse)
    trio.merge("ram")
    assert record_of(trio.folder / "merged").agents[0].active > 0


def test_ram_and_ram_plus_record_the_same_counts(tmp_path):
    # A stored copy of a tied head, an agent of weight 0 in some tensors, a threshold by tensor.
    trio = Trio(tmp_path, tie_word_embeddings=True)
    base = Path(trio.base_path)
    for folder in (base, *map(Path, trio.agents)):
        weights = read_weights(folder)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        write_weights(folder, weights, base)
    config = trio.config(
        "ram", parameters={"epsilon": [{"filter": "mlp", "value": 1e-2}, {"value": 1e-6}]}
    )
    config["models"][1]["parameters"] = {
        "weight": [{"filter": "self_attn", "value": 0}, {"value": 1}]
    }
    records = []
    for method in ("ram", "ram_plus"):
        merge_yaml(config | {"merge_method": method}, tmp_path / method)
        records.append(record_of(tmp_path / method))
    counts = [
        [(t.name, t.numel, t.epsilon, [a.overlap_degree for a in t.agents]) for t in r.tensors]
        for r in records
    ]
    assert counts[0] == counts[1]
    assert records[0].epsilon == (1e-6, 1e-2)
    assert records[0].agents[1].weight == (0, 1)
    assert "lm_head.weight" not in {name for name, *_ in counts[0]}


def test_inspecting_says_what_the_merge_then_records(trio: Trio, tmp_path):
    merged = tmp_path / "merged"
    trio.merge("ram_plus")
    result = CliRunner().invoke(
        main, ["inspect", str(tmp_path / "merged.yml"), "--quiet", "--json", "-", "--no-realised"]
    )
    before = OverlapRecord.model_validate_json(result.stdout)
    after = record_of(merged)
    assert before.tensors == after.tensors
    assert before.layers == after.layers
    assert before.models == after.models
    assert before.settings == after.settings


@BOTH
def test_the_model_card_has_a_section(trio: Trio, method):
    trio.merge(method)
    card = (trio.folder / "merged" / "README.md").read_text()
    assert card.startswith("---\n")  # mergekit's own part is whole
    section = card[card.index("## Overlap of the agents") :]
    settings = "ε = 1e-05, scale = 1, overlap_power = 1"
    settings += {"ram": "", "ram_plus": ", r = 0.1, α = 2"}[method]
    assert f"Merged by `{method}` of mergekit-ram" in section
    assert f"with {settings}." in section
    for agent in record_of(trio.folder / "merged").agents:
        (line,) = [line for line in section.splitlines() if f"| {agent.model} " in line]
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        assert cells[0] == f"{100 * agent.density:.2f} %"
        assert cells[1:3] == [f"{agent.unique:,}", f"{agent.shared:,}"]
        assert cells[4] == f"{agent.rescale:.3f}"


def test_no_model_card_is_respected_and_other_cards_are_left_alone(trio: Trio):
    trio.merge("ram_plus", "--no-write-model-card")
    assert not (trio.folder / "merged" / "README.md").exists()
    assert (trio.folder / "merged" / RECORD_NAME).exists()
    merge_yaml(trio.config("linear", parameters={"weight": 1.0}), trio.folder / "linear")
    assert "Overlap" not in (trio.folder / "linear" / "README.md").read_text()
    assert not (trio.folder / "linear" / RECORD_NAME).exists()


def test_a_finished_merge_is_shown_without_its_inputs(trio: Trio, tmp_path):
    trio.merge("ram_plus")
    for model in (trio.base_path, *trio.agents):
        (Path(model) / "model.safetensors").unlink()
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "merged")])
    assert result.exit_code == 0, result.output
    assert unfolded(result.output).startswith(f"ram_plus over {trio.base_path}: 3 agents")
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "merged"), "--json", "-"])
    assert OverlapRecord.model_validate_json(result.output) == record_of(tmp_path / "merged")


def test_a_merge_records_its_findings(trio: Trio, tmp_path):
    coder, *_ = trio.agents
    write_weights(Path(coder), trio.base, Path(trio.base_path))
    trio.merge("ram")
    (finding,) = record_of(tmp_path / "merged").findings
    assert (finding.code, finding.text.split()[0]) == ("equals-base", coder)
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "merged"), "--strict"])
    assert result.exit_code == 3
    assert finding.text in unfolded(result.output)


def test_what_needs_models_is_refused_for_a_folder(trio: Trio, tmp_path):
    trio.merge("ram")
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "merged"), "--sample", "0.1"])
    assert result.exit_code == 2
    assert "a record has none: give the YAML file" in unfolded(result.output)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a record of overlaps"),
        ('{"schema_version": 7}', "is no record of schema version 3"),
        ('{"kind": "merge"}', "is no record of schema version 3"),
        ('{"schema_version": 3, "kind": "merge"}', "is damaged: merge_method: Field required"),
    ],
)
def test_records_that_cannot_be_read_are_refused(tmp_path, content, message):
    (tmp_path / RECORD_NAME).write_text(content)
    result = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output
    assert str(tmp_path / RECORD_NAME) in result.output


@pytest.mark.parametrize(
    ("file", "kind"),
    [("config.json", "a model"), ("adapter_config.json", "an adapter"), ("notes", "a folder")],
)
def test_a_folder_without_a_record_is_told_by_what_it_is(tmp_path, file, kind):
    (tmp_path / file).write_text("{}")
    result = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {tmp_path} is {kind} without {RECORD_NAME}, which a ")
    assert "give the YAML of a merge with their base as `base_model:`." in result.output
    assert "Errno" not in result.output


def test_options_without_effect_on_a_record_are_told(trio: Trio, tmp_path):
    trio.merge("ram")
    told = "options of mergekit have no effect on a record"
    for options, is_told in ((), False), (("--quiet",), False), (("--trust-remote-code",), True):
        result = CliRunner().invoke(main, ["inspect", str(tmp_path / "merged"), *options])
        assert (told in result.stderr) == is_told


def test_raw_checkpoints_leave_a_record_too(tmp_path):
    from mergekit.scripts.merge_raw_pytorch import main as merge_raw

    save_file({"w": torch.zeros(4)}, tmp_path / "base.safetensors")
    save_file({"w": torch.tensor([1.0, 0, 0, 2])}, tmp_path / "one.safetensors")
    save_file({"w": torch.tensor([1.0, 3, 0, 0])}, tmp_path / "two.safetensors")
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("base", "one", "two")]
    recipe = tmp_path / "raw.yml"
    config = {
        "merge_method": "ram",
        "base_model": paths[0],
        "models": [{"model": path} for path in paths[1:]],
    }
    recipe.write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(merge_raw, [str(recipe), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    record = record_of(tmp_path / "out")
    assert [agent.overlap_degree for agent in record.agents] == [(1, 1), (1, 1)]
