"""A merge by units writes what mergekit-yaml writes, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit_merges import assert_finished, changed, killed_at_random, merge

from mergekit_ram.errors import InputError
from mergekit_ram.record.check import read_record
from mergekit_ram.record.schema import WORK_FOLDER
from mergekit_ram.units.driver import progress_text


def test_the_folder_is_that_of_mergekit_yaml(undisturbed, tmp_path):
    result = merge(undisturbed.recipe, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert_finished(tmp_path / "out", undisturbed.weights)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    expected = {path.name for path in undisturbed.folder.iterdir()}
    shards = {name for name in expected if name.startswith("model")}
    assert names - {n for n in names if n.startswith("model")} == expected - shards
    assert (tmp_path / "out" / "config.json").read_bytes() == (
        undisturbed.folder / "config.json"
    ).read_bytes()
    recorded, plain = (
        read_record(folder / "ram_overlap.json").statistics()
        for folder in (tmp_path / "out", undisturbed.folder)
    )
    assert recorded == plain


def test_directions_by_units_are_the_same(over_directions, tmp_path):
    result = merge(over_directions.recipe, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert_finished(tmp_path / "out", over_directions.weights)


def test_tries_that_are_killed_at_random_moments_end_in_the_same_bytes(plus, tmp_path):
    last = killed_at_random(plus.recipe, tmp_path / "out", tries=10, seed=1)
    assert int(last.removeprefix("killed ")) > 0
    assert_finished(tmp_path / "out", plus.weights)


def begun(plus, out: Path, first: int = 0, end: int = 3) -> None:
    """A merge of which some units are done."""
    result = merge(plus.recipe, out, "--units", f"{first}:{end}")
    assert result.exit_code == 0, result.output
    assert not (out / "config.json").exists()


def test_a_damaged_finished_shard_is_made_anew(plus, tmp_path):
    out = tmp_path / "out"
    begun(plus, out)
    shard = next((out / WORK_FOLDER).glob("unit-*.safetensors"))
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)
    result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)


def test_an_input_that_changed_between_two_tries_is_refused_by_name(plus, tmp_path):
    out = tmp_path / "out"
    begun(plus, out)
    agent = plus.trio.folder / "tool" / "model.safetensors"
    with changed(agent):
        result = merge(plus.recipe, out)
    assert result.exit_code == 1
    line = result.output.strip().splitlines()[-1]
    assert f"model {agent.parent} with other files" in line
    assert "--restart" in line


def test_another_plan_is_refused_and_restart_begins_anew(plus, tmp_path):
    out = tmp_path / "out"
    begun(plus, out)
    result = merge(plus.recipe, out, "--out-shard-size", "30K")
    assert result.exit_code == 1
    assert "an unfinished merge lies in it, of another --out-shard-size" in result.output
    result = merge(plus.recipe, out, "--out-shard-size", "30K", "--restart")
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)


def test_units_that_other_machines_do_make_one_model(plus, tmp_path):
    out = tmp_path / "out"
    begun(plus, out, 0, 1)
    units = len(json.loads((out / WORK_FOLDER / "merge.json").read_text())["units"])
    for first in range(0, units, 2):
        result = merge(plus.recipe, out, "--units", f"{first}:{first + 2}")
        assert result.exit_code == 0, result.output
    result = merge(plus.recipe, out, "--finalise")
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)


def test_the_progress_of_an_unfinished_merge_is_told(plus, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=f"^{out}: no such folder"):
        progress_text(out)
    out.mkdir()
    assert progress_text(out) == f"{out}: no unfinished merge\n"
    begun(plus, out)
    text = progress_text(out)
    assert "an unfinished merge of 4 models" in text
    assert "counting  1 of 1 units (100 %)\nmerging   2 of " in text
    assert "The same command resumes from here" in text


def test_shards_before_counts_are_refused(plus, tmp_path):
    result = merge(plus.recipe, tmp_path / "out", "--units", "3:4")
    assert result.exit_code == 1
    assert "units that are needed first are not done: 0." in result.output


def test_recorded_counts_are_used_and_nothing_is_counted(plus, tmp_path):
    recipe = tmp_path / "recipe.yml"
    text = plus.recipe.read_text()
    counts = plus.folder / "ram_overlap.json"
    recipe.write_text(f"{text}parameters:\n  statistics: {counts}\n")
    result = merge(recipe, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert_finished(tmp_path / "out", plus.weights)
    recorded = read_record(tmp_path / "out" / "ram_overlap.json")
    assert recorded.statistics() == read_record(counts).statistics()


def test_other_methods_are_left_to_mergekit(plus, tmp_path):
    recipe = tmp_path / "other.yml"
    recipe.write_text(plus.recipe.read_text().replace("method: ram_plus", "method: linear"))
    result = merge(recipe, tmp_path / "out")
    assert result.exit_code == 1
    assert "merge_method linear is none of ram" in result.output
    assert "use mergekit-yaml" in result.output


def test_what_a_merge_takes_is_estimated_without_a_trace(plus, tmp_path):
    result = merge(plus.recipe, tmp_path / "out", "--estimate")
    assert result.exit_code == 0, result.output
    written = sum(t.nbytes for t in plus.weights.values())
    assert f"written   {written / 1e6:,.2f} MB" in result.output
    assert "per worker at most" in result.output
    assert not (tmp_path / "out").exists()


def test_a_wrong_range_of_units_says_how_it_is_written(plus, tmp_path):
    result = merge(plus.recipe, tmp_path / "out", "--units", "5")
    assert result.exit_code == 2
    assert "write 0:16 for the units 0 to 15" in result.output
