"""How good a model is, from one pass over the prompts with their right answers.

A greedy answer is right exactly when every token of the right answer, and the end after it, is
the most likely one given those before it: the answer need not be generated. And the probability
that a sampled answer is right is the product of the tokens' probabilities, so that "one of four
samples is right" is known without the error of drawing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from model import Shape, new_model, new_tokenizer
from pretrain import IGNORED_LABEL, answered_batch
from tasks import TASKS, heldout_prompts, right_answer, teacher_answer, validation_prompts

from benchmarks.agents.effort import Effort

Weights = dict[str, torch.Tensor]
Batch = dict[str, torch.Tensor]

BATCH_SIZE = 100
SAMPLES = 4
RETENTION_SEED = 0


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


class Scorer:
    """The prompts of a run, and a model that takes one set of weights after another."""

    def __init__(self, shape: Shape, effort: Effort) -> None:
        """Tokenize all prompts once; the held-out ones decide nothing but the reported result."""
        self._tokenizer = new_tokenizer()
        self._model = new_model(self._tokenizer, shape).eval()
        self._batches = {
            "validation": self._right_answers(validation_prompts, effort.validation_prompts),
            "heldout": self._right_answers(heldout_prompts, effort.heldout_prompts),
        }
        self._mixture = self._teachers_answers(effort.retention_prompts)

    def score(
        self, weights: Weights, split: str, tasks: Sequence[str] = tuple(TASKS)
    ) -> dict[str, Score]:
        """Score weights on the ``validation`` or the ``heldout`` prompts of tasks."""
        self._load(weights)
        return {task: score_of(map(self._answer, self._batches[split][task])) for task in tasks}

    def retention(self, weights: Weights) -> float:
        """The loss per token on held-out text of the base's pretraining mixture."""
        self._load(weights)
        loss = torch.cat([-self._answer(batch).log_probability for batch in self._mixture]).sum()
        tokens = sum(int((batch["labels"] != IGNORED_LABEL).sum()) for batch in self._mixture)
        return float(loss) / tokens

    def _load(self, weights: Weights) -> None:
        missing = self._model.load_state_dict(weights, strict=False).missing_keys
        # The head is the embedding, and stored once.
        assert set(missing) <= {"lm_head.weight"}, missing

    @torch.inference_mode()
    def _answer(self, batch: Batch) -> Likelihood:
        # No padding mask: padding is on the right, where a causal model does not look.
        logits = self._model(input_ids=batch["input_ids"]).logits[:, :-1].log_softmax(dim=-1)
        labels = batch["labels"][:, 1:]
        counted = labels != IGNORED_LABEL
        taken = logits.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        return Likelihood(
            greedy=((logits.argmax(dim=-1) == labels) | ~counted).all(dim=1),
            log_probability=(taken * counted).sum(dim=1),
        )

    def _right_answers(self, draw: object, count: int) -> Mapping[str, list[Batch]]:
        assert callable(draw)
        return {
            name: self._tokenized([(p, right_answer(p)) for p in draw(task, count)])
            for name, task in TASKS.items()
        }

    def _teachers_answers(self, count: int) -> list[Batch]:
        rng = Random(RETENTION_SEED)
        prompts = [p for task in TASKS.values() for p in heldout_prompts(task, count)]
        return self._tokenized([(prompt, teacher_answer(prompt, rng)) for prompt in prompts])

    def _tokenized(self, pairs: Sequence[tuple[str, str]]) -> list[Batch]:
        """Batches of answered prompts, short ones first so that little is padded."""
        ordered = sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
        batches = []
        for start in range(0, len(ordered), BATCH_SIZE):
            prompts, answers = zip(*ordered[start : start + BATCH_SIZE], strict=True)
            batches.append(answered_batch(self._tokenizer, prompts, answers))
        return batches


def mean_accuracy(row: Mapping[str, Any]) -> float:
    """Greedy, over the tasks of a measured row."""
    accuracies = [score["greedy"] for score in row["tasks"].values()]
    return sum(accuracies) / len(accuracies)


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
