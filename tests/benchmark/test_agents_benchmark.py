"""The benchmark on agents: the command end to end, and the arithmetic behind its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from benchmarks.agents import document, merges, scoring, small_results, spread
from benchmarks.agents.__main__ import main
from benchmarks.agents.conditions import BY_NAME
from benchmarks.agents.effort import FULL, QUICK
from benchmarks.agents.ledger import Ledger, fingerprint
from benchmarks.agents.regions import Regions, statistics
from benchmarks.agents.results import Results
from benchmarks.agents.scoring import Scorer
from benchmarks.agents.small_tasks import SMALL_TASKS

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
    assert {run["condition"] for run in found.document["training"]} == set(found.conditions)


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


def test_the_published_tables_are_those_of_the_published_results(tmp_path):
    published = ROOT / "docs" / "results.md"
    copy = tmp_path / "results.md"
    copy.write_text(published.read_text())
    small = json.loads((ROOT / "docs" / "small.json").read_text())
    document.fill(copy, Results.read(ROOT / "docs" / "results.json"), small)
    assert copy.read_text() == published.read_text()


def test_without_results_of_the_small_scale_its_tables_stay(run, tmp_path):
    output, _ = run
    page = tmp_path / "page.md"
    text = "<!-- table: small: accuracy -->\nas it was\n<!-- end -->\n"
    page.write_text(text)
    arguments = ["report", str(output / "results.json"), "--document", str(page)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert page.read_text() == text


def test_a_difference_at_the_small_scale_is_paired_over_prompts():
    def row(tool: str, compute: str, recall: str) -> dict:
        bits = {"tool": tool, "compute": compute, "recall": recall}
        return {"tasks": {task: {"right": right} for task, right in bits.items()}}

    found = {"merges": {"RAM": row("11", "10", "11"), "TIES": row("10", "10", "01")}}
    measured = small_results.difference(found, "RAM", "TIES")
    # Of six prompts two more are right: differences 0, 1, 0, 0, 1, 0.
    assert measured.mean == pytest.approx(2 / 6)
    assert measured.standard_error == pytest.approx((4 / 15) ** 0.5 / 6**0.5)


def test_the_best_baseline_of_the_small_scale_is_not_ours_and_decided_on_validation_prompts():
    found = {
        "merges": dict.fromkeys(("TIES", "RAM", "sum of task vectors", "TIES, tuned")),
        "validation": {"TIES": 0.5, "RAM": 0.9, "sum of task vectors": 0.6, "TIES, tuned": 0.7},
    }
    assert small_results.best_baseline(found, "not tuned") == "sum of task vectors"
    assert small_results.best_baseline(found, "tuned or not") == "TIES, tuned"


def test_the_help_teaches():
    result = CliRunner().invoke(main, ["tiny", "--help"])
    assert "half an hour on two CPU cores" in result.output
    assert "pip install 'mergekit-ram[agents]'" in result.output
    for name in BY_NAME:
        assert name in result.output


def test_a_paired_difference_takes_the_spread_between_bases_out():
    found = spread.paired_difference({0: 0.5, 1: 0.7, 2: 0.9}, {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.1})
    # Differences 0.1, 0.2, 0.3: standard deviation 0.1, divided by √3.
    assert found.mean == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(0.1 / 3**0.5)
    assert found.count == 3


def test_one_base_has_no_spread():
    assert spread.paired_difference({0: 0.5}, {0: 0.4}).standard_error is None
    assert spread.summarise([0.5]).deviation is None


def test_a_summary_has_the_sample_standard_deviation():
    found = spread.summarise([0.2, 0.4, 0.6])
    assert (found.mean, found.deviation) == (pytest.approx(0.4), pytest.approx(0.2))


def test_the_best_is_the_best_mean_and_not_the_best_base():
    assert spread.best({"steady": {0: 0.6, 1: 0.6}, "lucky": {0: 0.9, 1: 0.2}}) == "steady"


def test_the_sampling_error_is_that_of_a_share():
    assert spread.sampling_error(0.9, 3000) == pytest.approx(0.00548, abs=1e-5)


def test_settings_that_differ_have_another_name():
    assert fingerprint(FULL, 1) == fingerprint(FULL, 1)
    assert fingerprint(FULL, 1) != fingerprint(QUICK, 1)


def test_a_ledger_measures_once_and_forgets_a_line_that_was_cut_off(tmp_path):
    file = tmp_path / "ledger.jsonl"
    assert Ledger(file).get("a", lambda: {"value": 1}) == {"value": 1}
    with file.open("a") as out:
        out.write('{"key": "b", "row": {"val')
    again = Ledger(file)
    assert again.get("a", lambda: pytest.fail("measured again")) == {"value": 1}
    assert again.get("b", lambda: {"value": 2}) == {"value": 2}
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()] == ["a", "b"]


def test_a_score_is_what_generating_the_answers_gives():
    from accuracy import greedy_accuracy
    from model import EXAMPLE_SHAPE, load
    from tasks import TASKS, heldout_prompts

    folder = ROOT / "examples" / "agents" / "base"
    weights = {
        name: value.float() for name, value in load_file(folder / "model.safetensors").items()
    }
    scores = Scorer(EXAMPLE_SHAPE, QUICK).score(weights, "heldout")
    model, tokenizer = load(folder)
    for task, score in scores.items():
        prompts = heldout_prompts(TASKS[task], QUICK.heldout_prompts)
        assert score.greedy == greedy_accuracy(model, tokenizer, prompts)
        assert 0 < score.sampled < score.best_of_4 < 1


def test_one_of_four_samples_is_right_with_the_probability_that_not_all_are_wrong():
    likelihood = scoring.Likelihood(
        greedy=torch.tensor([True, False]), log_probability=torch.tensor([0.5, 0.25]).log()
    )
    score = scoring.score_of(iter([likelihood]))
    assert score.greedy == 0.5
    assert score.sampled == pytest.approx(0.375)
    assert score.best_of_4 == pytest.approx((1 - 0.5**4 + 1 - 0.75**4) / 2)


BASE = {"w": torch.tensor([1.0, 1.0, 1.0, 1.0])}
AGENTS = {
    "add": {"w": torch.tensor([2.0, 1.0, 4.0, 1.0])},
    "sort": {"w": torch.tensor([1.0, 3.0, 2.0, 1.0])},
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean of task vectors", [1.5, 2.0, 3.0, 1.0]),
        ("sum of task vectors", [2.0, 3.0, 5.0, 1.0]),
        ("RAM", [2.0, 3.0, 3.0, 1.0]),
        ("RAM+", [2.1, 3.2, 3.0, 1.0]),
    ],
)
def test_a_merge_is_what_its_name_says(name, expected):
    merged = merges.FIXED[name](BASE, AGENTS, torch.float32, seed=0)
    torch.testing.assert_close(merged["w"], torch.tensor(expected))


def test_regions_are_cut_by_who_changed_a_weight():
    regions = Regions(BASE, AGENTS, "add")
    assert regions.unique["w"].tolist() == [True, False, False, False]
    assert regions.shared["w"].tolist() == [False, False, True, False]
    assert regions.model(regions.unique, 0.5)["w"].tolist() == [1.5, 1.0, 1.0, 1.0]
    assert statistics(BASE, AGENTS).agent("add").density == 0.5


def test_the_realised_factor_is_that_of_the_unique_weights():
    regions = Regions(BASE, AGENTS, "add")
    merged = {"w": torch.tensor([2.5, 9.0, 9.0, 9.0])}
    found = regions.realised(merged, merges.FIXED["RAM"](BASE, AGENTS, torch.float32, seed=0))
    assert found.factor == pytest.approx(1.5)
    assert found.changed_share == 1.0


def test_without_unique_weights_nothing_is_realised():
    regions = Regions(BASE, {"add": AGENTS["add"], "twin": AGENTS["add"]}, "add")
    found = regions.realised(AGENTS["add"], BASE)
    assert found.factor is None
    assert found.changed_share is None


@pytest.mark.parametrize(
    ("task", "prompt", "right", "wrong"),
    [
        (
            "tool",
            "Tools: set_alarm(hour, minute), send_money(name, amount).\n"
            "Request: Send 30 euros to Anna.<|im_end|>",
            '{"tool": "send_money", "arguments": {"name": "Anna", "amount": "30"}}',
            '{"tool": "send_money", "arguments": {"name": "Anna", "amount": "31"}}',
        ),
        ("compute", "Compute 7 + 8. Answer with the number only.", " 15", "16"),
        ("compute", "Compute 7 - 8. Answer with the number only.", "-1", "1"),
        (
            "recall",
            "The code of Anna is 1234. The code of Emre is 9.\nWhat is the code of Anna? Answer",
            "1234",
            "9",
        ),
    ],
)
def test_the_small_tasks_know_a_right_answer_from_a_wrong_one(task, prompt, right, wrong):
    assert SMALL_TASKS[task].is_right(prompt, right)
    assert not SMALL_TASKS[task].is_right(prompt, wrong)


@pytest.mark.parametrize("task", SMALL_TASKS)
def test_every_small_task_has_enough_prompts_and_can_answer_them(task):
    from tasks import heldout_prompts

    prompts = heldout_prompts(SMALL_TASKS[task], 1000)
    assert len(set(prompts)) == 1000
    assert all(SMALL_TASKS[task].is_right(p, SMALL_TASKS[task].solve(p)) for p in prompts)


def test_both_scales_find_the_same_answers_as_likely():
    from model import EXAMPLE_SHAPE, load

    from benchmarks.agents.small_model import likelihood

    scorer = Scorer(EXAMPLE_SHAPE, QUICK)
    model, _ = load(ROOT / "examples" / "agents" / "base")
    scorer._model.load_state_dict(model.state_dict())
    for batch in (batches[0] for batches in scorer._batches["heldout"].values()):
        expected, found = scorer._answer(batch), likelihood(model, batch)
        assert found.greedy.tolist() == expected.greedy.tolist()
        torch.testing.assert_close(found.log_probability, expected.log_probability)
