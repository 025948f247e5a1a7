"""Bases and agents of the benchmark: how they come to be, and where they are kept."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from accuracy import greedy_accuracy
from history import History
from model import Shape, new_model, new_tokenizer, save
from pretrain import Pace, answered_batch, pretrain
from recipe import Recipe
from safetensors.torch import load_file
from tasks import TASKS, right_answer, training_prompts, validation_prompts
from tqdm import trange
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.agents.conditions import Condition, Effort
from benchmarks.agents.jobs import fingerprint
from benchmarks.agents.merges import Weights

RECORD = "training.json"
WEIGHTS = "model.safetensors"
AGENT_SEEDS = 1000
"""Agent k of base s is trained with seed 1000 s + k, so that no two share a seed."""


@dataclass(frozen=True)
class BaseJob:
    """One base to pretrain."""

    output: Path
    effort: Effort
    architecture: str
    seed: int

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        key = fingerprint(Shape(self.architecture), self.seed, self.pace)
        return self.output / "models" / f"base-{self.architecture}-{self.seed}-{key}"

    @property
    def pace(self) -> Pace:
        """How it is pretrained: as the example's base, but in a third of the time."""
        effort = self.effort
        return Pace(
            effort.pretrain_steps,
            effort.flawless_steps,
            effort.pretrain_batch,
            effort.pretrain_rate,
            muon=True,
        )

    def __str__(self) -> str:
        return f"{self.architecture} base {self.seed}"


@dataclass(frozen=True)
class AgentJob:
    """One agent to train from a base."""

    base: BaseJob
    condition: Condition
    recipe: Recipe

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        how = (
            self.condition.supervised,
            self.condition.stored_in_bf16,
            self.base.effort.agent_steps,
        )
        key = fingerprint(self.base.folder.name, self.recipe, how)
        name = f"{self.condition.name}-{self.base.seed}-{self.recipe.task}-{key}"
        return self.base.output / "models" / name

    @property
    def seed(self) -> int:
        """Of its prompts, its samples and its trained part."""
        return AGENT_SEEDS * self.base.seed + self.condition.recipes.index(self.recipe) + 1

    def __str__(self) -> str:
        return f"{self.condition.name} {self.base.seed}: {self.recipe.task}"


def agent_jobs(base: BaseJob, condition: Condition) -> list[AgentJob]:
    """The agents of one base under one condition."""
    return [AgentJob(base, condition, recipe) for recipe in condition.recipes]


def is_made(job: BaseJob | AgentJob) -> bool:
    """Whether an earlier run finished it: the record is written last."""
    return (job.folder / RECORD).is_file()


def make(job: BaseJob | AgentJob) -> None:
    """Train and save; to be called in a process of its own, with one thread."""
    if is_made(job):
        return
    started = time.monotonic()
    record = _make_base(job) if isinstance(job, BaseJob) else _make_agent(job)
    record["seconds"] = round(time.monotonic() - started, 1)
    (job.folder / RECORD).write_text(json.dumps(record) + "\n")


def weights(job: BaseJob | AgentJob) -> Weights:
    """The stored weights in float32, which holds them exactly."""
    return {name: value.float() for name, value in load_file(job.folder / WEIGHTS).items()}


def _make_base(job: BaseJob) -> dict[str, Any]:
    model = pretrain(new_tokenizer(), job.pace, job.seed, Shape(job.architecture))
    save(model.state_dict(), job.folder, Shape(job.architecture))
    return {"seed": job.seed, **asdict(job.pace)}


def _make_agent(job: AgentJob) -> dict[str, Any]:
    tokenizer = new_tokenizer()
    model = new_model(tokenizer, Shape(job.base.architecture))
    model.load_state_dict(weights(job.base), strict=False)
    if job.condition.supervised:
        train = fine_tune
    else:
        from grpo import reinforce

        train = reinforce
    history = train(model, tokenizer, job.recipe, job.base.effort.agent_steps, job.seed)
    dtype = torch.bfloat16 if job.condition.stored_in_bf16 else torch.float32
    save(model.state_dict(), job.folder, Shape(job.base.architecture), dtype)
    return {"seed": job.seed, "recipe": asdict(job.recipe), **asdict(history)}


TUNING_BATCH = 96
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
        batch = list(islice(prompts, TUNING_BATCH))
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
