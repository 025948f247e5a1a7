"""Fisher merging of tiny agents."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from random import Random

from model import Shape, new_model, new_tokenizer
from pretrain import answered_batch
from tasks import TASKS, right_answer, training_prompts

from benchmarks.agents.merges import fusion

BATCH = 8
SEED = 0


def fisher(agents: Mapping[str, fusion.Weights], architecture: str, prompts: int) -> fusion.Weights:
    """By each agent's squared gradients on training prompts of its own task."""
    squares = [_squares(weights, task, architecture, prompts) for task, weights in agents.items()]
    return fusion.fisher(list(agents.values()), squares)


def _squares(weights: fusion.Weights, task: str, architecture: str, prompts: int) -> fusion.Weights:
    tokenizer = new_tokenizer()
    model = new_model(tokenizer, Shape(architecture)).eval()
    model.load_state_dict(weights, strict=False)
    drawn = list(islice(training_prompts(TASKS[task], Random(SEED)), prompts))
    batches = (
        answered_batch(tokenizer, part, [right_answer(p) for p in part])
        for part in (drawn[start : start + BATCH] for start in range(0, prompts, BATCH))
    )
    return fusion.squared_gradients(model, batches, prompts)
