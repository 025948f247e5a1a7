"""Fisher merging and WUDI as fusion-bench implements them; mergekit has neither."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from random import Random

import torch
from model import Shape, new_model, new_tokenizer
from pretrain import answered_batch
from tasks import TASKS, right_answer, training_prompts

Weights = dict[str, torch.Tensor]

FISHER_BATCH = 8
FISHER_SEED = 0


def fisher(agents: Mapping[str, Weights], architecture: str, prompts: int) -> Weights:
    """Average the agents, each weight by how much its agent's answers depend on it.

    The squared gradients are those of the log-likelihood of the right answers on training
    prompts of the agent's own task, with fusion-bench's normalisation and its defaults.
    """
    from fusion_bench.method.fisher_merging.fisher_merging import merging_with_fisher_weights

    names = next(iter(agents.values())).keys()
    return merging_with_fisher_weights(
        {name: [weights[name] for weights in agents.values()] for name in names},
        [_squared_gradients(w, task, architecture, prompts) for task, w in agents.items()],
        fisher_scaling_coefficients=torch.ones(len(agents)) / len(agents),
    )


def wudi(base: Weights, agents: Mapping[str, Weights], iterations: int) -> Weights:
    """Find the task vector that interferes least with the agents', from the weights alone.

    With fusion-bench's defaults, in which every matrix, the embedding too, is a linear layer.
    """
    from fusion_bench.method.wudi import wudi_merging

    deltas = [{name: w[name] - base[name] for name in base} for w in agents.values()]
    merged = wudi_merging(deltas, "cpu", iter_num=iterations)
    return {name: base[name] + merged[name].detach() for name in base}


def _squared_gradients(
    weights: Weights, task: str, architecture: str, prompts: int
) -> dict[str, torch.Tensor]:
    tokenizer = new_tokenizer()
    model = new_model(tokenizer, Shape(architecture)).eval()
    model.load_state_dict(weights, strict=False)
    drawn = list(islice(training_prompts(TASKS[task], Random(FISHER_SEED)), prompts))
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for start in range(0, prompts, FISHER_BATCH):
        batch = drawn[start : start + FISHER_BATCH]
        model.zero_grad()
        model(**answered_batch(tokenizer, batch, [right_answer(p) for p in batch])).loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            total[name] += parameter.grad.square()
    return {name: value / prompts for name, value in total.items()}
