"""The control: an agent that is shown the right answers instead of being rewarded for them."""

from __future__ import annotations

from itertools import islice
from random import Random

import torch
from accuracy import greedy_accuracy
from history import History
from pretrain import answered_batch
from recipe import Recipe
from tasks import TASKS, right_answer, training_prompts, validation_prompts
from tqdm import trange
from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE = 96
MAX_GRADIENT_NORM = 1.0
VALIDATION_SIZE = 500
STEPS_BETWEEN_VALIDATIONS = 10


def fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    max_steps: int,
    seed: int,
) -> History:
    """Train a float32 model in place on right answers, until it masters its task."""
    prompts = training_prompts(TASKS[recipe.task], Random(seed))
    checked = validation_prompts(TASKS[recipe.task], VALIDATION_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.0)
    history = History()
    for step in trange(1, max_steps + 1, desc=f"{recipe.task}: fine-tuning", unit="step"):
        batch = list(islice(prompts, BATCH_SIZE))
        loss = model(**answered_batch(tokenizer, batch, [right_answer(p) for p in batch])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        if step % STEPS_BETWEEN_VALIDATIONS == 0:
            history.validation[step] = greedy_accuracy(model, tokenizer, checked)
            if history.validation[step] >= recipe.target:
                break
    return history
