"""The merges that are compared: mergekit's, fixed or tuned on a grid, and two of fusion-bench."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from transformers import PreTrainedModel

Weights = dict[str, torch.Tensor]

BASE = "base"
DIRECTIONS = "ram_directions"
FISHER, WUDI = "Fisher", "WUDI"
FLOAT32_OUTPUT = "RAM+, float32 output"
TASK_ARITHMETIC = "task arithmetic, tuned"
PER_AGENT = ("weight", "density")
"""Parameters of which mergekit takes one per agent; here all agents have the same."""


@dataclass(frozen=True)
class Merge:
    """One call of mergekit; ``per_agent_share`` divides the weight by the number of agents."""

    method: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    per_agent_share: bool = False

    @property
    def label(self) -> str:
        """Name and parameters, the same for the same merge."""
        settings = [f"{name}={value:g}" for name, value in sorted(self.parameters.items())]
        settings += ["weight=1/N"] if self.per_agent_share else []
        return " ".join([self.method, *settings])

    def __call__(
        self, base: Weights, agents: Mapping[str, Weights], dtype: torch.dtype, seed: int
    ) -> Weights:
        """Merge in float32 and round the result to ``dtype`` once, whatever the method."""
        from mergekit.merge_methods import merge_state_dicts

        parameters: dict[str, Any] = dict(self.parameters)
        if self.per_agent_share:
            parameters["weight"] = 1 / len(agents)
        for name in PER_AGENT:
            if name in parameters:
                parameters[name] = dict.fromkeys(agents, parameters[name])
        torch.manual_seed(seed)  # DARE drops at random
        return merge_state_dicts(
            {BASE: base, **agents},
            self.method,
            base=BASE,
            parameters=parameters,
            dtype=torch.float32,
            out_dtype=dtype,
        )


FIXED: dict[str, Merge] = {
    "mean of task vectors": Merge("task_arithmetic", per_agent_share=True),
    "sum of task vectors": Merge("task_arithmetic", {"weight": 1.0}),
    "TIES": Merge("ties", {"weight": 1.0, "density": 0.2}),
    "DARE + sum": Merge("dare_linear", {"weight": 1.0, "density": 0.5}),
    "DARE + TIES": Merge("dare_ties", {"weight": 1.0, "density": 0.5}),
    "mergekit's ramplus_tl": Merge("ramplus_tl"),
    "RAM": Merge("ram"),
    "RAM+": Merge("ram_plus"),
    "RAM+, authors' rule": Merge("ram_plus", {"r": 0.2, "alpha": 1.0}),
    DIRECTIONS: Merge("ram_directions"),
}
"""What a user gets without tuning. TIES has its paper's density, DARE drops half."""


def _grid(method: str, **axes: tuple[float, ...]) -> tuple[Merge, ...]:
    points = product(*axes.values())
    return tuple(Merge(method, dict(zip(axes, point, strict=True))) for point in points)


SCALES = (0.5, 0.75, 1.0, 1.25, 1.5)
OVERLAP_POWERS = (1.0, 0.75, 0.5, 0.25, 0.0)
RATES = (0.0, 0.05, 0.1, 0.15, 0.2)
SUM_WEIGHTS = (0.35, 0.5, 0.7, 1.0)

OVER_RATES = _grid("ram_plus", r=RATES, alpha=(1.0, 2.0))
OVER_SCALE = _grid("ram_plus", scale=SCALES, overlap_power=(1.0,))
OVER_POWER = _grid("ram_plus", scale=(1.0,), overlap_power=OVERLAP_POWERS)
OVER_BOTH = _grid("ram_plus", scale=(0.75, 1.25, 1.5), overlap_power=(0.5, 0.0))
OVER_WEIGHT = _grid("task_arithmetic", weight=(0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0))

TUNED: dict[str, tuple[Merge, ...]] = {
    TASK_ARITHMETIC: OVER_WEIGHT,
    "TIES, tuned": _grid(
        "ties", weight=(1.0,), density=(0.2, 0.5, 1.0), **{"lambda": (0.7, 1.0, 1.4)}
    ),
    "DARE + TA, tuned": _grid("dare_linear", weight=SUM_WEIGHTS, density=(0.5, 0.8)),
    "DARE + TIES, tuned": _grid("dare_ties", weight=SUM_WEIGHTS, density=(0.5, 0.8)),
    "RAM+, tuned r and α": OVER_RATES,
    "RAM+, tuned scale": OVER_SCALE,
    "RAM+, tuned overlap_power": OVER_POWER,
    "RAM+, tuned scale and overlap_power": (*OVER_SCALE, *OVER_POWER, *OVER_BOTH),
}

SWEEPS: dict[str, tuple[Merge, ...]] = {
    "weight of task arithmetic": OVER_WEIGHT,
    "r at α = 1": tuple(m for m in OVER_RATES if m.parameters["alpha"] == 1.0),
    "r at α = 2": tuple(m for m in OVER_RATES if m.parameters["alpha"] == 2.0),
    "scale": OVER_SCALE,
    "overlap_power": OVER_POWER,
}
"""Grids of one parameter, of which every point is reported on held-out prompts."""

THRESHOLDS = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3)
OVER_EPSILON = _grid("ram_plus", epsilon=THRESHOLDS)

RIDGES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
OVER_RIDGE = _grid("ram_directions", ridge=RIDGES)

MIXED = (
    "mean of task vectors",
    "sum of task vectors",
    "TIES",
    "DARE + TIES",
    "RAM",
    "RAM+",
    DIRECTIONS,
)
MIXED_WEIGHTS = _grid("task_arithmetic", weight=(0.15, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0))
"""Of mixtures; with eight agents a smaller weight may be the best."""


def is_ours(name: str) -> bool:
    """Whether a row of the tables is a merge by this package."""
    return name.startswith(("RAM", DIRECTIONS))


# fusion-bench's; mergekit has neither


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
