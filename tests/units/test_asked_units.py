"""``--units`` and ``--finalise`` never remove a finished model, and say what they find."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from observed import Killed, contents, killed, told
from unit_merges import assert_finished, changed, merge

from mergekit_ram.record.schema import WORK_FOLDER
from mergekit_ram.units.folder import unfinished_merge

NOTHING_LEFT = "this merge is finished: nothing is left to do. --restart merges anew."

LATE = (("--finalise",), ("--units", "800:810"))


@pytest.fixture(scope="module")
def finished(plus, tmp_path_factory) -> Path:
    """The folder of a finished merge."""
    out = tmp_path_factory.mktemp("finished") / "out"
    result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    return out


def refused(recipe: Path, out: Path, *options: str) -> str:
    """The line in which the command refuses, which leaves everything as it was."""
    before = contents(out)
    result = merge(recipe, out, *options)
    assert result.exit_code == 1, result.output
    assert contents(out) == before
    assert not (out / WORK_FOLDER).exists() or before
    return result.output.strip().splitlines()[-1]


@pytest.mark.parametrize("options", LATE)
def test_a_late_task_leaves_the_finished_model_of_its_merge(plus, finished, options, caplog):
    before = contents(finished)
    result = merge(plus.recipe, finished, *options)
    assert result.exit_code == 0, result.output
    assert told(caplog)[-1] == f"output folder {finished}: {NOTHING_LEFT}"
    assert contents(finished) == before


@pytest.mark.parametrize("options", LATE)
def test_units_of_another_merge_are_refused_where_a_model_is_finished(
    plus, finished, options, tmp_path
):
    recipe = tmp_path / "other.yml"
    recipe.write_text(plus.recipe.read_text() + "parameters:\n  scale: 0.5\n")
    line = refused(recipe, finished, *options)
    assert f"output folder {finished}: a finished model lies in it, of another conf" in line
    assert "Neither --units nor --finalise replaces a model: choose another folder" in line
    assert "--restart, which removes it" in line


def test_units_are_refused_where_an_input_has_changed_since_the_model_was_finished(plus, finished):
    agent = plus.trio.folder / "tool" / "model.safetensors"
    with changed(agent):
        line = refused(plus.recipe, finished, "--finalise")
    assert f"a finished model lies in it, of model {agent.parent} with other files" in line


def test_a_model_of_unknown_origin_is_not_replaced_by_units(plus):
    out = plus.trio.folder / "tool"
    recipe = plus.recipe.with_name("without_tool.yml")
    config = yaml.safe_load(plus.recipe.read_text())
    config["models"] = [m for m in config["models"] if not m["model"].endswith("tool")]
    recipe.write_text(yaml.safe_dump(config))
    line = refused(recipe, out, "--units", "0:1")
    assert "of an unknown merge (it lacks mergekit_config.yml or ram_overlap.json)" in line


def test_changed_weights_are_not_taken_for_the_finished_merge(plus, tmp_path):
    out = tmp_path / "out"
    assert merge(plus.recipe, out).exit_code == 0
    with changed(next(out.glob("*.safetensors"))):
        line = refused(plus.recipe, out, "--units", "0:1")
    assert "of weights that were changed afterwards" in line


def test_units_with_restart_replace_a_finished_model(plus, tmp_path, caplog):
    out = tmp_path / "out"
    assert merge(plus.recipe, out).exit_code == 0
    result = merge(plus.recipe, out, "--units", "0:1", "--restart")
    assert result.exit_code == 0, result.output
    assert any("replacing the model in it (config.json" in line for line in told(caplog))
    assert not (out / "config.json").exists()


def test_nothing_is_finalised_where_nothing_was_begun(plus, tmp_path):
    line = refused(plus.recipe, tmp_path / "out", "--finalise")
    assert line == (
        f"Error: output folder {tmp_path / 'out'}: no unfinished merge lies in it. Begin one by "
        "the same command without --finalise, or give its folder."
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", [("--restart",), ("--units", "0:1")])
def test_finalising_neither_does_units_nor_throws_them_away(plus, finished, other):
    line = refused(plus.recipe, finished, "--finalise", *other)
    assert line == (
        "Error: --finalise uses finished units: it does none (--units) and throws none away "
        "(--restart). Leave out one of the two."
    )


def begun(plus, out: Path) -> int:
    """A merge of which three units are done; how many it has."""
    result = merge(plus.recipe, out, "--units", "0:3")
    assert result.exit_code == 0, result.output
    return len(unfinished_merge(out).manifest.units)


def test_finalising_says_which_units_lack(plus, tmp_path):
    out = tmp_path / "out"
    units = begun(plus, out)
    next((out / WORK_FOLDER).glob("unit-00001-*.json")).unlink()
    result = merge(plus.recipe, out, "--finalise")
    assert result.exit_code == 1, result.output
    line = result.output.strip().splitlines()[-1]
    assert line == (
        f"Error: output folder {out}: units that are needed first are not done: 1, 3 to "
        f"{units - 1}. Do them with --units, or all of them by the same command without --units "
        "and --finalise."
    )


def test_units_make_no_model_and_finalising_does(plus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    units = begun(plus, out)
    result = merge(plus.recipe, out, "--units", f"3:{units}")
    assert result.exit_code == 0, result.output
    assert "(100 %)" in result.output.splitlines()[-2]
    assert not (out / "config.json").exists()
    with monkeypatch.context() as patched:
        patched.setattr("mergekit_ram.units.folder.remove_earlier_model", killed)
        with pytest.raises(Killed):
            merge(plus.recipe, out, "--finalise")
    before = contents(out)
    assert merge(plus.recipe, out, "--units", "0:1").exit_code == 0
    assert contents(out) == before
    assert merge(plus.recipe, out, "--finalise").exit_code == 0
    assert_finished(out, plus.weights)


def test_finalising_refuses_a_damaged_shard_and_its_task_makes_it_anew(plus, tmp_path):
    out = tmp_path / "out"
    assert merge(plus.recipe, out, "--units", "0:100").exit_code == 0
    shard = sorted((out / WORK_FOLDER).glob("unit-*.safetensors"))[-1]
    number = int(shard.name.split("-")[1])
    with changed(shard):
        result = merge(plus.recipe, out, "--finalise")
        assert result.exit_code == 1, result.output
        assert f"units that are needed first are not done: {number}." in result.output
        assert merge(plus.recipe, out, "--units", f"{number}:100").exit_code == 0
        whole = shard.read_bytes()
    shard.write_bytes(whole)
    assert merge(plus.recipe, out, "--finalise").exit_code == 0
    assert_finished(out, plus.weights)


def test_a_range_beyond_the_last_unit_says_how_many_there_are(plus, tmp_path, caplog):
    out = tmp_path / "out"
    units = begun(plus, out)
    before = contents(out)
    result = merge(plus.recipe, out, "--units", f"{units}:{units + 2}")
    assert result.exit_code == 0, result.output
    line = told(caplog)[-1]
    assert line.startswith(
        f"--units {units}:{units + 2}: nothing to do, the merge has {units} units"
    )
    assert f"{out}: an unfinished merge of 4 models" in result.output
    assert contents(out) == before


def test_a_range_beyond_the_last_unit_begins_nothing(plus, tmp_path, caplog):
    out = tmp_path / "out"
    result = merge(plus.recipe, out, "--units", "100:200")
    assert result.exit_code == 0, result.output
    assert told(caplog)[-1].startswith("--units 100:200: nothing to do, the merge has ")
    assert not out.exists()
