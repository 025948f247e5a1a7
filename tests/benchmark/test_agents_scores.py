"""Measurements of the benchmark on agents: answers, counts, merges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accuracy import greedy_accuracy
from model import EXAMPLE_SHAPE, load
from pretrain import IGNORED_LABEL
from safetensors.torch import load_file
from tasks import TASKS, heldout_prompts

from benchmarks.agents import merges
from benchmarks.agents.conditions import QUICK
from benchmarks.agents.study import Scorer, right, statistics

FOLDER = Path(__file__).parents[2] / "examples" / "agents" / "base"


def test_a_score_is_what_generating_the_answers_gives():
    weights = {
        name: value.float() for name, value in load_file(FOLDER / "model.safetensors").items()
    }
    scores = Scorer(EXAMPLE_SHAPE, QUICK).score(weights, "heldout")
    model, tokenizer = load(FOLDER)
    for task, accuracy in scores.items():
        prompts = heldout_prompts(TASKS[task], QUICK.heldout_prompts)
        assert accuracy == greedy_accuracy(model, tokenizer, prompts)
        assert 0 < accuracy < 1


def test_right_answers_without_the_needless_logits_are_those_of_all_of_them():
    scorer = Scorer(EXAMPLE_SHAPE, QUICK)
    model, _ = load(FOLDER)
    for batch in (batches[0] for batches in scorer._batches["heldout"].values()):
        labels = batch["labels"][:, 1:]
        with torch.inference_mode():
            logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        expected = ((logits.argmax(dim=-1) == labels) | (labels == IGNORED_LABEL)).all(dim=1)
        assert right(model, batch).tolist() == expected.double().tolist()


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


def test_the_counts_are_those_of_the_agents():
    found = statistics(BASE, AGENTS, 1e-5).agent("add")
    assert found.density == 0.5
    assert tuple(found.overlap_degree) == (1, 1)
