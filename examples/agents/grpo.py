"""Reinforcement learning of one agent: GRPO on one task, in a fixed random part of the weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from accuracy import greedy_accuracy
from datasets import Dataset
from history import History
from model import load
from recipe import Recipe
from tasks import TASKS, is_right, training_prompts, validation_prompts
from tqdm import tqdm
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from trl import GRPOConfig, GRPOTrainer

PROMPTS_PER_STEP = 24
SAMPLES_PER_PROMPT = 8
MAX_COMPLETION_TOKENS = 10
VALIDATION_SIZE = 500
STEPS_BETWEEN_VALIDATIONS = 10

Logs = dict[str, float] | None


def train_agent(
    base: Path, recipe: Recipe, max_steps: int, seed: int
) -> tuple[dict[str, torch.Tensor], History]:
    """Train one agent from the saved base; return its float32 weights and how training went."""
    model, tokenizer = load(base)
    history = reinforce(model, tokenizer, recipe, max_steps, seed)
    return model.state_dict(), history


def reinforce(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    max_steps: int,
    seed: int,
) -> History:
    """Train a float32 model in place."""
    restrict_training(model, recipe.trained_share, seed)
    history = History()
    callbacks: list[TrainerCallback] = [StopWhenSkilled(recipe, tokenizer, history, max_steps)]
    if recipe.bf16_weights:
        callbacks.insert(0, RoundWeights())
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=verifiable_reward,
            args=_settings(recipe, max_steps, seed, scratch),
            train_dataset=_prompt_dataset(recipe.task, max_steps, seed),
            processing_class=tokenizer,
            callbacks=callbacks,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return history


def restrict_training(model: PreTrainedModel, share: float, seed: int) -> None:
    """Let only a random ``share`` of the weights get gradients, the same one for the whole run.

    Without weight decay, AdamW leaves a weight whose gradient is always zero exactly as it was.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        mask = (torch.rand(parameter.shape, generator=generator) < share).to(parameter.dtype)
        parameter.register_hook(mask.mul)


def verifiable_reward(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """Reward 1 for exactly the right answer and 0 for anything else."""
    return [float(is_right(p, c)) for p, c in zip(prompts, completions, strict=True)]


def _prompt_dataset(task: str, steps: int, seed: int) -> Dataset:
    prompts = training_prompts(TASKS[task], Random(seed))
    return Dataset.from_dict({"prompt": list(islice(prompts, steps * PROMPTS_PER_STEP))})


def plain_settings(scratch: str, **own: Any) -> GRPOConfig:
    """Return GRPO without a penalty, a schedule or decay; ``own`` is what differs between runs."""
    return GRPOConfig(
        output_dir=scratch,
        temperature=1.0,
        beta=0.0,  # no penalty for leaving the base
        lr_scheduler_type="constant",
        weight_decay=0.0,  # decay would move the weights that must stay as they are
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,  # KeepRewards shows a bar of its own
        **own,
    )


def _settings(recipe: Recipe, max_steps: int, seed: int, scratch: str) -> GRPOConfig:
    return plain_settings(
        scratch,
        seed=seed,
        max_steps=max_steps,
        per_device_train_batch_size=PROMPTS_PER_STEP * SAMPLES_PER_PROMPT,
        num_generations=SAMPLES_PER_PROMPT,
        max_completion_length=MAX_COMPLETION_TOKENS,
        optim=recipe.optimizer,
        learning_rate=recipe.learning_rate,
        bf16=False,  # float32 master weights; they are rounded once, when the agent is saved
        use_cpu=True,
        dataloader_pin_memory=False,
    )


class RoundWeights(TrainerCallback):
    """Keep the weights at bfloat16 values: an update below half a unit in the last place is lost.

    Computing stays in float32, so that it is only the storage that makes updates sparse.
    """

    @torch.no_grad()
    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, model: PreTrainedModel | None = None, **_: Any
    ) -> None:
        """Round after the optimiser has moved the weights."""
        assert model is not None, "the trainer passes its model"
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


class KeepRewards(TrainerCallback):
    """Keep the mean reward of every step, and show a bar."""

    def __init__(self, rewards: list[float], name: str, max_steps: int) -> None:
        """Open the bar; ``rewards`` is what they are appended to."""
        self.rewards = rewards
        self.progress = tqdm(total=max_steps, desc=f"{name}: GRPO", unit="step")

    def on_log(
        self, args: Any, state: Any, control: TrainerControl, logs: Logs = None, **_: Any
    ) -> None:
        """Keep the mean reward of the step that was just logged."""
        if logs and "reward" in logs:
            self.rewards.append(round(float(logs["reward"]), 4))
            self.progress.set_postfix(reward=f"{logs['reward']:.2f}", refresh=False)
            control.should_training_stop |= self.is_enough()

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        """Move the bar."""
        self.progress.update()

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        """Close the bar at the step where training stopped."""
        self.progress.close()

    def is_enough(self) -> bool:
        """Whether the rewards so far say that training may stop."""
        return False


class StopWhenSkilled(KeepRewards):
    """Validate now and then, and stop once the agent masters its task."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        history: History,
        max_steps: int,
    ) -> None:
        """Draw the validation prompts."""
        super().__init__(history.rewards, recipe.task, max_steps)
        self.target = recipe.target
        self.tokenizer = tokenizer
        self.history = history
        self.prompts: Sequence[str] = validation_prompts(TASKS[recipe.task], VALIDATION_SIZE)

    def on_step_end(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **_: Any,
    ) -> None:
        """Validate every few steps and ask the trainer to stop at the target."""
        super().on_step_end(args, state, control)
        if model is None or state.global_step % STEPS_BETWEEN_VALIDATIONS:
            return
        accuracy = greedy_accuracy(model, self.tokenizer, self.prompts)
        self.history.validation[state.global_step] = accuracy
        self.progress.write(f"step {state.global_step}: validation accuracy {accuracy:.3f}")
        control.should_training_stop |= accuracy >= self.target
