"""What the benchmark on agents measures of weights: answers, parts of task vectors, merges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accuracy import greedy_accuracy
from model import EXAMPLE_SHAPE, load
from pretrain import IGNORED_LABEL
from safetensors.torch import load_file
from tasks import TASKS, heldout_prompts

from benchmarks.agents.merges import catalogue
from benchmarks.agents.scores.likelihood import Likelihood, likelihood, score_of
from benchmarks.agents.scores.regions import Regions, statistics
from benchmarks.agents.tiny.effort import QUICK
from benchmarks.agents.tiny.scorer import Scorer

FOLDER = Path(__file__).parents[2] / "examples" / "agents" / "base"


def test_a_score_is_what_generating_the_answers_gives():
    weights = {
        name: value.float() for name, value in load_file(FOLDER / "model.safetensors").items()
    }
    scores = Scorer(EXAMPLE_SHAPE, QUICK).score(weights, "heldout")
    model, tokenizer = load(FOLDER)
    for task, score in scores.items():
        prompts = heldout_prompts(TASKS[task], QUICK.heldout_prompts)
        assert score.greedy == greedy_accuracy(model, tokenizer, prompts)
        assert 0 < score.sampled < score.best_of_4 < 1


def test_a_likelihood_without_the_needless_logits_is_that_of_all_of_them():
    scorer = Scorer(EXAMPLE_SHAPE, QUICK)
    model, _ = load(FOLDER)
    scorer._model.load_state_dict(model.state_dict())
    for batch in (batches[0] for batches in scorer._batches["heldout"].values()):
        found = likelihood(model, batch)
        labels = batch["labels"][:, 1:]
        counted = labels != IGNORED_LABEL
        with torch.inference_mode():
            logits = model(input_ids=batch["input_ids"]).logits[:, :-1].log_softmax(dim=-1)
        taken = logits.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        right = ((logits.argmax(dim=-1) == labels) | ~counted).all(dim=1)
        assert found.greedy.tolist() == right.tolist()
        torch.testing.assert_close(found.log_probability, (taken * counted).sum(dim=1))


def test_one_of_four_samples_is_right_with_the_probability_that_not_all_are_wrong():
    likelihood = Likelihood(
        greedy=torch.tensor([True, False]), log_probability=torch.tensor([0.5, 0.25]).log()
    )
    score = score_of(iter([likelihood]))
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
    merged = catalogue.FIXED[name](BASE, AGENTS, torch.float32, seed=0)
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
    found = regions.realised(merged, catalogue.FIXED["RAM"](BASE, AGENTS, torch.float32, seed=0))
    assert found.factor == pytest.approx(1.5)
    assert found.changed_share == 1.0


def test_without_unique_weights_nothing_is_realised():
    regions = Regions(BASE, {"add": AGENTS["add"], "twin": AGENTS["add"]}, "add")
    found = regions.realised(AGENTS["add"], BASE)
    assert found.factor is None
    assert found.changed_share is None
