"""How the agents come to be, and how much is trained and measured."""

from __future__ import annotations

from dataclasses import dataclass

from recipe import Recipe

TARGET = 0.97


@dataclass(frozen=True)
class Condition:
    """One way to make three agents from a base; ``seeds`` bases have such agents at most.

    Agents are stored in bfloat16, or in float32 where they are to be dense: rounding would
    take the small updates away. ``words`` are the five under the name in the figure, and
    ``detailed`` ones get the tables of one parameter.
    """

    name: str
    title: str
    words: str
    seeds: int
    recipes: tuple[Recipe, ...]
    architecture: str = "qwen2"
    supervised: bool = False
    stored_in_bf16: bool = True
    detailed: bool = False


def _recipes(
    learning_rates: tuple[float, float, float],
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0),
    optimizer: str = "adamw_torch",
    bf16_weights: bool = False,
) -> tuple[Recipe, ...]:
    return tuple(
        Recipe(task, share, rate, TARGET, optimizer, bf16_weights)
        for task, share, rate in zip(
            ("add", "reverse", "sort"), shares, learning_rates, strict=True
        )
    )


SUBNETWORKS = _recipes((5e-4, 3e-4, 2e-4), shares=(0.20, 0.50, 0.35))

CONDITIONS = (
    Condition(
        "subnetworks",
        "GRPO, Adam on random subnetworks",
        "GRPO, each its own weights",
        5,
        SUBNETWORKS,
        detailed=True,
    ),
    Condition(
        "dense",
        "GRPO, Adam on all weights, float32",
        "GRPO, all weights, in float32",
        5,
        _recipes((3e-4, 2e-4, 2e-4)),
        stored_in_bf16=False,
    ),
    Condition(
        "bf16-adam",
        "GRPO, Adam on bfloat16 weights",
        "GRPO, bfloat16 weights, by Adam",
        5,
        _recipes((1e-4, 1e-4, 1e-4), bf16_weights=True),
    ),
    Condition(
        "bf16-sgd",
        "GRPO, SGD on bfloat16 weights",
        "GRPO, bfloat16 weights, by SGD",
        5,
        _recipes((0.1, 0.1, 0.1), optimizer="sgd", bf16_weights=True),
    ),
    Condition(
        "supervised",
        "supervised fine-tuning, Adam, float32",
        "shown right answers, no rewards",
        5,
        _recipes((2e-4, 2e-4, 2e-4)),
        supervised=True,
        stored_in_bf16=False,
    ),
    Condition(
        "llama",
        "GRPO, Adam on random subnetworks, Llama architecture",
        "subnetworks in a Llama model",
        1,
        SUBNETWORKS,
        architecture="llama",
    ),
)
BY_NAME = {condition.name: condition for condition in CONDITIONS}


@dataclass(frozen=True)
class Effort:
    """``FULL`` makes the published tables, ``QUICK`` shows within a minute that all of it runs."""

    pretrain_steps: int
    flawless_steps: int
    pretrain_batch: int
    pretrain_rate: float
    agent_steps: int
    heldout_prompts: int
    validation_prompts: int
    fisher_prompts: int
    wudi_iterations: int
    grid_step: int


FULL = Effort(
    pretrain_steps=900,
    flawless_steps=450,
    pretrain_batch=64,
    pretrain_rate=4e-3,
    agent_steps=100,
    heldout_prompts=1000,
    validation_prompts=200,
    fisher_prompts=256,
    wudi_iterations=400,
    grid_step=1,
)
QUICK = Effort(
    pretrain_steps=10,
    flawless_steps=5,
    pretrain_batch=48,
    pretrain_rate=4e-3,
    agent_steps=2,
    heldout_prompts=20,
    validation_prompts=20,
    fisher_prompts=16,
    wudi_iterations=2,
    grid_step=8,
)
"""``grid_step`` takes every eighth point of a tuning grid."""
