"""Fisher merging and WUDI as fusion-bench implements them; mergekit has neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

Weights = dict[str, torch.Tensor]


def fisher(agents: Sequence[Weights], squares: Sequence[Weights]) -> Weights:
    """Average the agents, each weight by how much its agent's answers depend on it.

    With fusion-bench's normalisation and its defaults.

    Args:
        agents: float32 weights.
        squares: per agent, its :func:`squared_gradients`.
    """
    from fusion_bench.method.fisher_merging.fisher_merging import merging_with_fisher_weights

    return merging_with_fisher_weights(
        {name: [weights[name] for weights in agents] for name in agents[0]},
        list(squares),
        fisher_scaling_coefficients=torch.ones(len(agents)) / len(agents),
    )


def squared_gradients(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Any]], prompts: int
) -> Weights:
    """Of the loss of each batch of right answers, summed and divided by ``prompts``."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for batch in batches:
        model.zero_grad()
        model(**batch).loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            total[name] += parameter.grad.square()
    return {name: value / prompts for name, value in total.items()}


def wudi(base: Weights, agents: Mapping[str, Weights], iterations: int) -> Weights:
    """Find the task vector that interferes least with the agents', from the weights alone.

    With fusion-bench's defaults, in which every matrix, the embedding too, is a linear layer.
    """
    from fusion_bench.method.wudi import wudi_merging

    deltas = [{name: w[name] - base[name] for name in base} for w in agents.values()]
    merged = wudi_merging(deltas, "cpu", iter_num=iterations)
    return {name: base[name] + merged[name].detach() for name in base}
