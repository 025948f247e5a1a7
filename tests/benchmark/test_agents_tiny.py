"""The tiny scale of the benchmark on agents: the command, end to end, and its document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.agents import document, merges, models, study
from benchmarks.agents.__main__ import main
from benchmarks.agents.conditions import BY_NAME, QUICK
from benchmarks.agents.results import Results

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.agents", "tiny", "--quick", "--seeds", "2"]
CONDITIONS = ["--condition", "subnetworks", "--condition", "supervised"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that a quick run wrote, and what it printed."""
    output = tmp_path_factory.mktemp("agents") / "run"
    result = subprocess.run(
        [*COMMAND, *CONDITIONS, "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    logs = "".join(log.read_text()[-2000:] for log in output.glob("logs/*"))
    assert result.returncode == 0, result.stderr[-3000:] + logs
    return output, result.stdout


def test_the_command_says_where_it_wrote_what_it_found(run):
    output, printed = run
    for name in ("tables.md", "results.json", "accuracy.svg"):
        assert f"written: {output / name}" in printed
        assert (output / name).stat().st_size > 0
    for row in ("base", "mean of task vectors", "Fisher", "WUDI", "RAM+", *merges.TUNED):
        assert f"\n| {row} |" in printed


def test_the_results_hold_every_merge_of_every_base_and_how_it_was_made(run):
    output, _ = run
    found = Results.read(output / "results.json")
    assert found.conditions == ["subnetworks", "supervised"]
    for condition in found.conditions:
        for name in merges.FIXED:
            for split in ("validation", "heldout"):
                values = found.accuracy(condition, "fixed", name, split)
                assert values.keys() == {0, 1}
                assert all(0 <= value <= 1 for value in values.values())
        for name in merges.TUNED:
            for seed, row in found.tuned(condition, name).items():
                assert seed in found.accuracy(condition, "grid", row["chosen"])
    assert found.document["versions"]["torch"] == torch.__version__
    assert found.document["effort"]["heldout_prompts"] == QUICK.heldout_prompts


def test_agents_of_different_origin_are_merged_too(run):
    output, _ = run
    found = Results.read(output / "results.json")
    assert found.mixtures == {
        "two: sparse, dense": [("subnetworks", "add"), ("supervised", "sort")]
    }
    for name in (*merges.MIXED, merges.WUDI, merges.TASK_ARITHMETIC):
        assert found.merged("two: sparse, dense", name).keys() == {0, 1}
    tables = (output / "tables.md").read_text()
    assert "\n| two: sparse, dense | add of subnetworks; sort of supervised |" in tables
    assert "\n| two: sparse, dense | 2 |" in tables


def test_merges_that_a_later_plan_adds_are_measured_and_no_others(run, monkeypatch):
    output, _ = run
    job = study.study(models.BaseJob(output, QUICK, "qwen2", 0), BY_NAME["supervised"])
    before = job.ledger.rows
    monkeypatch.setitem(merges.FIXED, "mean, again", merges.FIXED["mean of task vectors"])
    monkeypatch.setattr(study, "FINISHED", "finished, another plan")
    assert not study.is_measured(job)
    study.measure(job)
    assert study.is_measured(job)
    added = job.ledger.rows.keys() - before.keys()
    again = {f"fixed/mean, again/{split}" for split in ("validation", "heldout")}
    assert added == again | {"finished, another plan"}


def test_a_second_run_does_nothing_again(run):
    output, _ = run
    made = {file: file.stat().st_mtime_ns for file in output.glob("models/*/*")}
    rows = {file: file.read_bytes() for file in output.glob("evaluations/*")}
    result = CliRunner().invoke(
        main, ["tiny", "--quick", "--seeds", "2", *CONDITIONS, "--output", str(output)]
    )
    assert result.exit_code == 0, result.output
    assert made == {file: file.stat().st_mtime_ns for file in output.glob("models/*/*")}
    assert rows == {file: file.read_bytes() for file in output.glob("evaluations/*")}


def test_a_document_is_filled_in_from_the_results(run, tmp_path):
    output, _ = run
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: accuracy -->\nold\n<!-- end -->\nafter\n")
    arguments = ["report", str(output / "results.json"), "--document", str(page)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| RAM |" in text
    assert "old" not in text


def test_an_unknown_table_is_refused_with_the_names_of_those_there_are(run, tmp_path):
    output, _ = run
    page = tmp_path / "page.md"
    page.write_text("<!-- table: acuracy -->\n<!-- end -->\n")
    arguments = ["report", str(output / "results.json"), "--document", str(page)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "no table is called 'acuracy'" in result.output
    assert "accuracy;" in result.output


@pytest.mark.parametrize("published", ["docs/results.md", "benchmarks/agents/RESULTS.md"])
def test_the_published_tables_are_those_of_the_published_results(tmp_path, published):
    copy = tmp_path / "copy.md"
    copy.write_text((ROOT / published).read_text())
    folder = ROOT / "benchmarks" / "agents"
    small = [json.loads(file.read_text()) for file in sorted(folder.glob("small-*.json"))]
    assert len(small) == 2
    document.fill(copy, document.every_table(Results.read(folder / "results.json"), small))
    assert copy.read_text() == (ROOT / published).read_text()


def test_without_results_of_the_small_scale_its_tables_stay(run, tmp_path):
    output, _ = run
    page = tmp_path / "page.md"
    text = "<!-- table: small, seed 0: accuracy -->\nas it was\n<!-- end -->\n"
    page.write_text(text)
    named = document.every_table(Results.read(output / "results.json"))
    document.fill(page, named)
    assert page.read_text() == text


def test_the_help_teaches():
    result = CliRunner().invoke(main, ["tiny", "--help"])
    assert "half an hour on two CPU cores" in result.output
    assert "pip install '.[agents]'" in result.output
    for name in BY_NAME:
        assert name in result.output
