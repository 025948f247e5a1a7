"""The prompts of the tiny scale, and a model that takes one set of weights after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import torch
from model import Shape, new_model, new_tokenizer
from pretrain import IGNORED_LABEL, answered_batch
from tasks import TASKS, heldout_prompts, right_answer, teacher_answer, validation_prompts

from benchmarks.agents.scores.likelihood import Batch, Score, likelihood, score_of
from benchmarks.agents.tiny.effort import Effort

Weights = dict[str, torch.Tensor]

BATCH_SIZE = 100
RETENTION_SEED = 0


class Scorer:
    """Scores weights on the prompts of a run."""

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
        batches = self._batches[split]
        return {
            task: score_of(likelihood(self._model, batch) for batch in batches[task])
            for task in tasks
        }

    def retention(self, weights: Weights) -> float:
        """The loss per token on held-out text of the base's pretraining mixture."""
        self._load(weights)
        found = [likelihood(self._model, batch).log_probability for batch in self._mixture]
        tokens = sum(int((batch["labels"] != IGNORED_LABEL).sum()) for batch in self._mixture)
        return float(torch.cat([-each for each in found]).sum()) / tokens

    def _load(self, weights: Weights) -> None:
        missing = self._model.load_state_dict(weights, strict=False).missing_keys
        # The head is the embedding, and stored once.
        assert set(missing) <= {"lm_head.weight"}, missing

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
