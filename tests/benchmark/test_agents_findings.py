"""What is kept of a run of the benchmark on agents, and the arithmetic behind its tables."""

from __future__ import annotations

import json

import pytest

from benchmarks.agents.findings import spread
from benchmarks.agents.running.ledger import Ledger, fingerprint
from benchmarks.agents.tiny.effort import FULL, QUICK


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
