"""A worker does units of the one merge that its driver has planned, whatever lies in the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mergekit.options import MergeOptions
from unit_merges import assert_finished, changed, merge

from mergekit_ram.errors import InputError
from mergekit_ram.units import job as jobs
from mergekit_ram.units.folder import unfinished_merge

OPTIONS = {"copy_tokenizer": False, "out_shard_size": 8 * 1000, "quiet": True}


@pytest.fixture(autouse=True)
def no_benches() -> None:
    """Every test plans anew, as a new worker does."""
    jobs.planned_worker.cache_clear()


def job_of(recipe: Path, out: Path) -> jobs.MergeJob:
    """As the driver tells the workers of an unfinished merge."""
    job = jobs.read_job(recipe, out, MergeOptions(**OPTIONS), workers=2)
    return replace(job, plan=unfinished_merge(out).manifest.digest)


def begun(recipe: Path, out: Path, *options: str) -> None:
    result = merge(recipe, out, "--units", "0:1", *options)
    assert result.exit_code == 0, result.output


def other(plus, folder: Path) -> Path:
    """The same models, merged with half of their updates."""
    recipe = folder / "other.yml"
    recipe.write_text(plus.recipe.read_text() + "parameters:\n  scale: 0.5\n")
    return recipe


def test_what_a_worker_brings_after_a_restart_is_not_taken_for_the_new_plans(plus, tmp_path):
    out = tmp_path / "out"
    begun(other(plus, tmp_path), out)
    left = job_of(other(plus, tmp_path), out)
    shards = [unit.number for unit in unfinished_merge(out).manifest.units if unit.kind == "shard"]
    if shards[0] > 0:
        assert merge(other(plus, tmp_path), out, "--units", f"0:{shards[0]}").exit_code == 0
    jobs.run_unit(left, shards[0])
    worker = jobs.planned_worker(left)
    at_work = worker.run(shards[1])
    # Its driver is killed; somebody begins another merge in this folder.
    begun(plus.recipe, out, "--restart")
    with pytest.raises(InputError, match="No such file"):
        at_work()
    worker.run(shards[-1])()
    result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)


def test_a_worker_that_would_do_another_merge_says_where_and_what_differs(
    plus, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    begun(plus.recipe, out)
    job = job_of(plus.recipe, out)
    jobs.run_unit(job, 0)
    jobs.planned_worker.cache_clear()
    monkeypatch.setattr(jobs.socket, "gethostname", lambda: "node7")
    agent = plus.trio.folder / "tool" / "model.safetensors"
    with changed(agent), pytest.raises(InputError) as raised:
        jobs.run_unit(job, 0)
    line = str(raised.value)
    assert "host node7 would do units of another merge" in line
    assert f"model {agent.parent} with other files" in line
    assert "\n" not in line


def test_another_version_on_a_workers_machine_is_told(plus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    begun(plus.recipe, out)
    job = job_of(plus.recipe, out)
    here = jobs.versions()
    monkeypatch.setattr(jobs, "versions", lambda: here.model_copy(update={"torch": "1.0"}))
    with pytest.raises(InputError, match="another version of torch"):
        jobs.run_unit(job, 0)
