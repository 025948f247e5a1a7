"""How good a model is, from one pass over the prompts with their right answers.

A greedy answer is right exactly when every token of the right answer, and the end after it, is
the most likely one given those before it: the answer need not be generated. And the probability
that a sampled answer is right is the product of the tokens' probabilities, so that "one of four
samples is right" is known without the error of drawing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pretrain import IGNORED_LABEL
from transformers import PreTrainedModel

Batch = dict[str, torch.Tensor]

SAMPLES = 4


@dataclass(frozen=True)
class Score:
    """Shares of prompts: answered right greedily, by a sample, by one of four samples."""

    greedy: float
    sampled: float
    best_of_4: float


@dataclass(frozen=True)
class Likelihood:
    """Per prompt of a batch, of its answer and the end: all greedy, and the log-probability."""

    greedy: torch.Tensor
    log_probability: torch.Tensor


@torch.inference_mode()
def likelihood(model: PreTrainedModel, batch: Batch) -> Likelihood:
    """Of the labelled tokens of every row.

    Logits are taken where there is a label alone: they are a good part of a small model's work.
    No padding mask: padding is on the right, where a causal model does not look.
    """
    labels = batch["labels"][:, 1:]
    counted = labels != IGNORED_LABEL
    hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden[counted]).float().log_softmax(dim=-1)
    expected = labels[counted]
    taken = logits.gather(1, expected.unsqueeze(1)).squeeze(1)
    wrong = torch.zeros(labels.shape, dtype=torch.bool, device=labels.device)
    wrong[counted] = logits.argmax(dim=-1) != expected
    log_probability = torch.zeros(labels.shape, device=labels.device)
    log_probability[counted] = taken
    return Likelihood(greedy=~wrong.any(dim=1), log_probability=log_probability.sum(dim=1))


def score_of(likelihoods: Iterable[Likelihood]) -> Score:
    """Shares of all prompts of these batches."""
    every = list(likelihoods)
    greedy = torch.cat([each.greedy for each in every]).double()
    probability = torch.cat([each.log_probability for each in every]).double().exp()
    return Score(
        greedy=float(greedy.mean()),
        sampled=float(probability.mean()),
        best_of_4=float((1 - (1 - probability) ** SAMPLES).mean()),
    )


def mean_accuracy(row: Mapping[str, Any]) -> float:
    """Greedy, over the tasks of a measured row."""
    accuracies = [score["greedy"] for score in row["tasks"].values()]
    return sum(accuracies) / len(accuracies)
