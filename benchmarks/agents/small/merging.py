"""The merges of the small scale: mergekit's and ours, and what only fusion-bench has."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from random import Random

import torch
from tasks import training_prompts

from benchmarks.agents.merges import catalogue, fusion
from benchmarks.agents.merges.catalogue import Merge
from benchmarks.agents.merges.wudi import wudi_by_grams
from benchmarks.agents.small.model import SmallModel, Weights
from benchmarks.agents.small.tasks import SMALL_TASKS

WUDI_STEPS = 400
FISHER_PROMPTS, FISHER_BATCH, FISHER_SEED = 128, 8, 0

FIXED = {name: merge.label for name, merge in catalogue.FIXED.items()} | {
    catalogue.FISHER: f"fisher prompts={FISHER_PROMPTS}",
    catalogue.WUDI: f"wudi steps={WUDI_STEPS}",
}
"""Of the merges that nobody tunes: the labels, by what tables call them."""


def every_merge() -> dict[str, Merge]:
    """Those by mergekit, by label: the fixed ones, and all points of the grids."""
    grids = (merge for grid in catalogue.TUNED.values() for merge in grid)
    return {merge.label: merge for merge in (*catalogue.FIXED.values(), *grids)}


def merged(label: str, base: Weights, agents: Mapping[str, Weights], seed: int) -> Weights:
    """Merge float32 models; the result is rounded to bfloat16, as models are stored."""
    if label in (made := every_merge()):
        return made[label](base, agents, torch.bfloat16, seed)
    if label == FIXED[catalogue.WUDI]:
        result = wudi_by_grams(base, agents, WUDI_STEPS)
    elif label == FIXED[catalogue.FISHER]:
        result = _fisher(agents)
    else:
        raise KeyError(label)
    return {name: weights.to(torch.bfloat16) for name, weights in result.items()}


@torch.enable_grad()
def _fisher(agents: Mapping[str, Weights]) -> Weights:
    """By each agent's squared gradients on training prompts of its own task."""
    device = next(iter(next(iter(agents.values())).values())).device
    small = SmallModel(str(device))
    squares = []
    for name, weights in agents.items():
        small.load(weights)
        task = SMALL_TASKS[name]
        drawn = list(islice(training_prompts(task, Random(FISHER_SEED)), FISHER_PROMPTS))
        starts = range(0, FISHER_PROMPTS, FISHER_BATCH)
        batches = (small.answered(task, drawn[start : start + FISHER_BATCH]) for start in starts)
        squares.append(fusion.squared_gradients(small.model, batches, FISHER_PROMPTS))
    return fusion.fisher(list(agents.values()), squares)
