"""How the agents come to be: the conditions under which everything is measured."""

from __future__ import annotations

from dataclasses import dataclass

from recipe import Recipe

TARGET = 0.97


@dataclass(frozen=True)
class Condition:
    """One way to make three agents from a base; ``seeds`` bases have such agents at most.

    Agents are stored in bfloat16, or in float32 where they are to be dense: rounding would
    take the small updates away. ``words`` are the five under the name in the figure, and
    ``detailed`` ones get the tables of pairs and of one parameter.
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
MAIN = CONDITIONS[0]
