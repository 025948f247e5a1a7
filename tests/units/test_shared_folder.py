"""What lies in the output folder beside a merge by units: other models, counts, adapters."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import yaml
from click.testing import CliRunner
from models import Trio, run_yaml, succeed
from observed import Killed, contents, killed, told
from transformers import AutoModelForCausalLM
from unit_merges import assert_finished, merge

from mergekit_ram.cli import main
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.units import folder as folders


def test_a_model_that_another_program_wrote_meanwhile_is_replaced(plus, tmp_path, caplog):
    out = tmp_path / "out"
    assert merge(plus.recipe, out, "--units", "0:3").exit_code == 0
    other = {**plus.trio.config("linear"), "parameters": {"weight": 1.0}}
    succeed(run_yaml(other, out, "--no-copy-tokenizer", "--out-shard-size", "1B"))
    assert (out / "model.safetensors").is_file()
    result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    assert any("replacing the model in it (config.json, " in line for line in told(caplog))
    assert not (out / "model.safetensors").exists()
    assert_finished(out, plus.weights)


@pytest.mark.parametrize("moved", [1, 4, "all"])
def test_shards_that_were_moved_before_a_crash_are_kept(plus, tmp_path, moved, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(MergeRecorder, "write", killed)
        if moved != "all":
            patched.setattr(folders.os, "replace", replacing_some(out, moved))
        with pytest.raises(Killed):
            merge(plus.recipe, out)
    assert moved in ("all", len(list(out.glob("model-*.safetensors"))))
    (out / "model.safetensors").write_bytes(b"of another program")
    with monkeypatch.context() as patched:
        patched.setattr("mergekit_ram.units.job.write_shard", killed)
        result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    assert not (out / "model.safetensors").exists()
    assert_finished(out, plus.weights)


def replacing_some(folder: Path, most: int) -> Callable[[Path, Path], None]:
    """``os.replace`` of a process that is killed when it has moved so many files to a folder."""
    replace, moved = os.replace, itertools.count()

    def replace_some(source: Path, target: Path) -> None:
        if Path(target).parent == folder and next(moved) == most:
            raise Killed
        replace(source, target)

    return replace_some


def test_counts_in_the_output_folder_are_not_removed_before_they_are_read(plus, tmp_path):
    text = plus.recipe.read_text().replace(": ram\n", ": ram_plus\n")
    recipe, out = tmp_path / "recipe.yml", tmp_path / "out"
    recipe.write_text(text)
    assert merge(recipe, out).exit_code == 0
    counts = out / "ram_overlap.json"
    recipe.write_text(f"{text}parameters:\n  statistics: {counts}\n")
    for options in ((), ("--workers", "2"), ("--restart",), ("--units", "0:1")):
        before = contents(out)
        result = merge(recipe, out, *options)
        assert result.exit_code == 1, result.output
        assert result.output.strip().splitlines()[-1] == (
            f"Error: statistics {counts}: they are part of the model in the output folder {out}, "
            "which this merge replaces. Copy the file elsewhere, or choose another folder."
        )
        assert contents(out) == before


def test_the_status_of_a_folder_that_is_not_there_is_an_error(tmp_path):
    result = CliRunner().invoke(main, ["status", str(tmp_path / "nope")])
    assert result.exit_code == 1
    assert result.output == (
        f"Error: {tmp_path / 'nope'}: no such folder. Give the output folder of a merge.\n"
    )


@pytest.fixture
def with_adapter(trio: Trio) -> Path:
    """A recipe of two agents, one of them an adapter on the base."""
    model = AutoModelForCausalLM.from_pretrained(trio.base_path, dtype="auto")
    lora = peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False)
    folder = trio.folder / "adapter"
    peft.get_peft_model(model, lora).save_pretrained(folder)
    whole = trio.config("ram")["models"][0]
    config = trio.config("ram", models=[{"model": f"{trio.base_path}+{folder}"}, whole])
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(config))
    return recipe


def test_an_estimate_with_adapters_leaves_no_trace(with_adapter):
    parent = with_adapter.parent
    before = contents(parent)
    result = merge(with_adapter, parent / "out", "--estimate")
    assert result.exit_code == 0, result.output
    assert "per worker at most" in result.output
    assert contents(parent) == before
    assert not (parent / "out").exists()


def test_a_late_task_of_a_merge_with_adapters_leaves_no_trace(with_adapter, caplog):
    out = with_adapter.parent / "out"
    assert merge(with_adapter, out).exit_code == 0
    assert any("which is removed at the end; --lora-merge-cache" in line for line in told(caplog))
    before = contents(with_adapter.parent)
    result = merge(with_adapter, out, "--finalise")
    assert result.exit_code == 0, result.output
    assert told(caplog)[-1].endswith("nothing is left to do. --restart merges anew.")
    assert contents(with_adapter.parent) == before
