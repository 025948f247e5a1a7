"""What the tests of the roads through mergekit have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import reference
import torch
from models import (
    Weights,
)
from reference import same_bits

BOTH = pytest.mark.parametrize(("method", "r"), [("ram", 0.0), ("ram_plus", 0.1)])


Agents = Mapping[str, Weights]


def assert_same(written: Weights, expected: Weights, dtype: torch.dtype = torch.bfloat16) -> None:
    assert set(written) == set(expected)
    for name, tensor in expected.items():
        assert same_bits(written[name], tensor.to(dtype)), name


# Slices


def layer(weights: Weights, source: int, target: int) -> Weights:
    """One layer's weights under the names of another layer."""
    prefix = f"model.layers.{source}."
    return {
        f"model.layers.{target}.{name.removeprefix(prefix)}": tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }


def outside(weights: Weights) -> Weights:
    return {name: tensor for name, tensor in weights.items() if ".layers." not in name}


# Dtypes


DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def expected_with(
    base: Weights, agents: Agents, choose: Callable[[str, str], dict[str, Any]]
) -> Weights:
    """Merge with settings per tensor: ``choose(tensor, agent)`` gives epsilon, r, alpha, …."""
    totals = {model: [0] * len(agents) for model in agents}
    for name, tensor in base.items():
        settings = {model: choose(name, model) for model in agents}
        epsilon = next(iter(settings.values())).get("epsilon", 1e-5)
        taking_part = {m: {"w": agents[m][name]} for m in agents if settings[m].get("weight", 1)}
        counts = reference.count({"w": tensor}, taking_part, epsilon)
        for model, degree in counts.overlap_degree.items():
            for k, number in enumerate(degree):
                totals[model][k] += number
    whole = reference.Counts(overlap_degree=totals)
    merged = {}
    for name, tensor in base.items():
        settings = {model: choose(name, model) for model in agents}
        shared = next(iter(settings.values()))
        factors = {
            m: s["rescale"]
            if "rescale" in s
            else whole.rescale(m, s.get("r", 0.1), s.get("alpha", 2.0))
            for m, s in settings.items()
        }
        merged[name] = reference.merge_tensor(
            tensor,
            {model: weights[name] for model, weights in agents.items()},
            epsilon=shared.get("epsilon", 1e-5),
            rescale=factors,
            weight={model: s.get("weight", 1.0) for model, s in settings.items()},
            scale=shared.get("scale", 1.0),
            overlap_power=shared.get("overlap_power", 1.0),
        )
    return merged
