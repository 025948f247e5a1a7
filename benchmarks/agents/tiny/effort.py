"""How long to train and how much to measure."""

from __future__ import annotations

from dataclasses import dataclass


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
    retention_prompts: int
    fisher_prompts: int
    wudi_iterations: int
    isotropy_draws: int
    grid_step: int


FULL = Effort(
    pretrain_steps=900,
    flawless_steps=450,
    pretrain_batch=64,
    pretrain_rate=4e-3,
    agent_steps=100,
    heldout_prompts=1000,
    validation_prompts=200,
    retention_prompts=100,
    fisher_prompts=256,
    wudi_iterations=400,
    isotropy_draws=3,
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
    retention_prompts=10,
    fisher_prompts=16,
    wudi_iterations=2,
    isotropy_draws=1,
    grid_step=8,
)
"""``grid_step`` takes every eighth point of a tuning grid."""
