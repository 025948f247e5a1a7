"""What one agent is trained with; light to import, unlike the trainer itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """What differs between the agents: the task, the share of weights it may move, the pace.

    ``bf16_weights`` rounds all weights to bfloat16 after every step, as training without a
    float32 copy does; ``optimizer`` is one of transformers' names.
    """

    task: str
    trained_share: float
    learning_rate: float
    target: float
    optimizer: str = "adamw_torch_fused"
    bf16_weights: bool = False
