"""Pretraining of the base by imitation of an imperfect teacher on all three tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import torch
from model import EXAMPLE_SHAPE, Shape, new_model
from tasks import TASKS, right_answer, teacher_answer, training_prompts
from tqdm import trange
from transformers import PreTrainedModel, PreTrainedTokenizerBase

WARMUP_SHARE = 0.05
MAX_GRADIENT_NORM = 1.0
IGNORED_LABEL = -100


@dataclass(frozen=True)
class Pace:
    """How long and how fast.

    Two things save time: Muon needs fewer steps than AdamW, and a teacher that makes no
    mistake in the first ``flawless_steps`` is imitated sooner.
    """

    steps: int
    flawless_steps: int = 0
    batch_size: int = 96
    learning_rate: float = 1e-3
    muon: bool = False


def pretrain(
    tokenizer: PreTrainedTokenizerBase, pace: Pace, seed: int, shape: Shape = EXAMPLE_SHAPE
) -> PreTrainedModel:
    """Train a new model to answer as the teacher does, right or wrong."""
    torch.manual_seed(seed)
    rng = Random(seed)
    streams = [training_prompts(task, rng) for task in TASKS.values()]
    model = new_model(tokenizer, shape).train()
    optimizers = _optimizers(model, pace)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            pace.learning_rate,
            total_steps=pace.steps,
            pct_start=WARMUP_SHARE,
            cycle_momentum=False,
        )
        for optimizer in optimizers
    ]
    progress = trange(pace.steps, desc="base: imitation", unit="step")
    for step in progress:
        answer = right_answer if step < pace.flawless_steps else partial(teacher_answer, rng=rng)
        prompts = [next(streams[i % len(streams)]) for i in range(pace.batch_size)]
        batch = answered_batch(tokenizer, prompts, [answer(p) for p in prompts])
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return model.eval()


def _optimizers(model: PreTrainedModel, pace: Pace) -> list[torch.optim.Optimizer]:
    """AdamW for all, or Muon for the matrices and AdamW for the embedding and the vectors."""
    if not pace.muon:
        return [torch.optim.AdamW(model.parameters(), lr=pace.learning_rate)]
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "embed" not in name
        (matrices if is_matrix else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices, lr=pace.learning_rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=pace.learning_rate),
    ]


def answered_batch(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], answers: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Tokenize prompts with their answers; only the answers' tokens are labelled."""
    texts = [p + answer + tokenizer.eos_token for p, answer in zip(prompts, answers, strict=True)]
    inputs = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORED_LABEL)
    for row, prompt in zip(labels, prompts, strict=True):
        row[: len(prompt)] = IGNORED_LABEL  # one character is one token
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "labels": labels,
    }
