"""What is kept of a run of the benchmark on agents, and the arithmetic behind its tables."""

from __future__ import annotations

import json

import pytest

from benchmarks.agents import merges
from benchmarks.agents.conditions import FULL, QUICK
from benchmarks.agents.jobs import Ledger, fingerprint
from benchmarks.agents.results import Results, paired_difference, summarise


def test_a_paired_difference_takes_the_spread_between_bases_out():
    found = paired_difference({0: 0.5, 1: 0.7, 2: 0.9}, {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.1})
    # Differences 0.1, 0.2, 0.3: standard deviation 0.1, divided by √3.
    assert found.mean == pytest.approx(0.2)
    assert found.error == pytest.approx(0.1 / 3**0.5)
    assert found.count == 3


def test_one_base_has_no_spread():
    assert paired_difference({0: 0.5}, {0: 0.4}).error is None
    assert summarise([0.5]).error is None


def test_a_summary_has_the_sample_standard_deviation():
    found = summarise([0.2, 0.4, 0.6])
    assert (found.mean, found.error) == (pytest.approx(0.4), pytest.approx(0.2))


def test_the_best_is_the_best_mean_on_validation_prompts_and_not_the_best_base():
    found = {"TIES": (0.6, 0.6), "DARE + sum": (0.9, 0.2)}
    rows = [
        {
            "condition": "dense",
            "seed": seed,
            "kind": "fixed",
            "name": name,
            "split": split,
            "tasks": {"add": value if split == "validation" else 1 - value},
        }
        for name, values in found.items()
        for seed, value in enumerate(values)
        for split in ("validation", "heldout")
    ]
    assert all(name in merges.FIXED for name in found)
    assert Results({"conditions": {}, "rows": rows}).best("dense", found) == "TIES"


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
