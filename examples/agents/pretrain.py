"""Pretraining of the base by imitation of an imperfect teacher on all three tasks."""

from __future__ import annotations

from random import Random

import torch
from model import new_model
from tasks import TASKS, teacher_answer, training_prompts
from tqdm import trange
from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE = 96
LEARNING_RATE = 1e-3
WARMUP_SHARE = 0.05
MAX_GRADIENT_NORM = 1.0
IGNORED_LABEL = -100


def pretrain(tokenizer: PreTrainedTokenizerBase, steps: int, seed: int) -> PreTrainedModel:
    """Train a new model to answer as the teacher does, right or wrong."""
    torch.manual_seed(seed)
    rng = Random(seed)
    streams = [training_prompts(task, rng) for task in TASKS.values()]
    model = new_model(tokenizer).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=WARMUP_SHARE, cycle_momentum=False
    )
    progress = trange(steps, desc="base: imitation", unit="step")
    for _ in progress:
        prompts = [next(streams[i % len(streams)]) for i in range(BATCH_SIZE)]
        batch = _imitation_batch(tokenizer, prompts, rng)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return model.eval()


def _imitation_batch(
    tokenizer: PreTrainedTokenizerBase, prompts: list[str], rng: Random
) -> dict[str, torch.Tensor]:
    """Tokenize prompts with the teacher's answers; only the answers' tokens are labelled."""
    answers = [teacher_answer(prompt, rng) + tokenizer.eos_token for prompt in prompts]
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    inputs = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORED_LABEL)
    for row, prompt in zip(labels, prompts, strict=True):
        row[: len(prompt)] = IGNORED_LABEL  # one character is one token
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "labels": labels,
    }
