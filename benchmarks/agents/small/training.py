"""How the agents of the small scale come to be: a warm-up of the base, then GRPO on one task."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from grpo import KeepRewards, plain_settings
from tasks import training_prompts, validation_prompts
from tqdm import trange
from trl import GRPOConfig, GRPOTrainer

from benchmarks.agents.scores.likelihood import score_of
from benchmarks.agents.small.model import SmallModel
from benchmarks.agents.small.tasks import SmallTask

WARM_UP_RATE = 2e-5
WARM_UP_BATCH = 16
WARM_UP_SEED_OFFSET = 1000
MAX_GRADIENT_NORM = 1.0
SEQUENCES_PER_PASS = 32
"""Sequences whose gradients are computed at a time: what fits into a GPU beside others."""
REWARDS_LOOKED_AT = 5


@dataclass(frozen=True)
class SmallPace:
    """How long bases and agents are trained, and when they are good enough."""

    warm_up_steps: int = 200
    warm_up_target: float = 0.4
    warm_up_checked: int = 50
    steps: int = 100
    prompts_per_step: int = 8
    samples: int = 8
    learning_rate: float = 1e-5
    target: float = 0.97


@dataclass
class SmallHistory:
    """Accuracies or rewards over the steps."""

    warm_up: dict[str, list[float]] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)


def warm_up(
    small: SmallModel, tasks: Mapping[str, SmallTask], pace: SmallPace, seed: int
) -> SmallHistory:
    """Show right answers until the model gives some by itself, so that rewards differ.

    A task leaves the mixture for good once ``warm_up_target`` of its validation prompts are
    answered right.
    """
    prompts = {
        name: training_prompts(task, Random(seed + WARM_UP_SEED_OFFSET))
        for name, task in tasks.items()
    }
    checked = {n: validation_prompts(t, pace.warm_up_checked) for n, t in tasks.items()}  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(small.model.parameters(), lr=WARM_UP_RATE, weight_decay=0.0)
    history = SmallHistory(warm_up={name: [] for name in tasks})
    for _ in trange(pace.warm_up_steps, desc="base: warm-up", unit="step"):
        left = [n for n, s in history.warm_up.items() if not s or s[-1] < pace.warm_up_target]
        for name in left:
            with _products_in_bfloat16(small):
                found = score_of(small.likelihoods(tasks[name], checked[name]))
            history.warm_up[name].append(found.greedy)
        left = [name for name in left if history.warm_up[name][-1] < pace.warm_up_target]
        if not left:
            break
        for name in left:
            batch = small.answered(tasks[name], list(islice(prompts[name], WARM_UP_BATCH)))
            with _products_in_bfloat16(small):
                loss = small.model(**batch).loss / len(left)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(small.model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return history


def _products_in_bfloat16(small: SmallModel) -> torch.autocast:
    return torch.autocast(small.model.device.type, torch.bfloat16)


def reinforce(small: SmallModel, task: SmallTask, pace: SmallPace, seed: int) -> SmallHistory:
    """Train a float32 model in place by GRPO on one task; the reward is a right answer."""

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
        pairs = zip(prompts, completions, strict=True)
        return [float(task.is_right(prompt, small.trimmed(text))) for prompt, text in pairs]

    count = pace.steps * pace.prompts_per_step
    prompts = list(islice(training_prompts(task, Random(seed)), count))
    history = SmallHistory()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=small.model,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=small.tokenizer,
            args=_settings(small, task, pace, seed, Path(scratch)),
            callbacks=[_StopWhenRewarded(history, task.name, pace)],
        )
        trainer.train()
    small.model.eval()
    return history


def _settings(
    small: SmallModel, task: SmallTask, pace: SmallPace, seed: int, scratch: Path
) -> GRPOConfig:
    sequences = pace.prompts_per_step * pace.samples
    passes = max(sequences // SEQUENCES_PER_PASS, 1)
    return plain_settings(
        str(scratch),
        seed=seed,
        max_steps=pace.steps,
        per_device_train_batch_size=sequences // passes,
        gradient_accumulation_steps=passes,
        num_generations=pace.samples,
        max_completion_length=task.max_tokens,
        learning_rate=pace.learning_rate,
        # Products in bfloat16, weights in float32, which are rounded once, when they are saved.
        bf16=True,
        use_cpu=small.model.device.type == "cpu",
    )


class _StopWhenRewarded(KeepRewards):
    """Stops once the last rewards say that the agent masters its task."""

    def __init__(self, history: SmallHistory, name: str, pace: SmallPace) -> None:
        super().__init__(history.rewards, name, pace.steps)
        self._target = pace.target

    def is_enough(self) -> bool:
        last = self.rewards[-REWARDS_LOOKED_AT:]
        return len(last) == REWARDS_LOOKED_AT and fmean(last) >= self._target
