"""Records to draw pages of: counts that fit each other, spread over layers and modules."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from mergekit_ram.overlap import AgentCounts, AgentOverlap, OverlapStatistics, TensorOverlap
from mergekit_ram.record.contents import ModelRecord
from mergekit_ram.record.schema import (
    AgentRecord,
    Finding,
    Intervals,
    OverlapRecord,
    PairRecord,
    SampleRecord,
    Setting,
    Settings,
    TensorAgent,
    TensorRecord,
    ThresholdAgent,
    ThresholdRecord,
    Versions,
)

EPSILON = 1e-5
R = 0.1
ALPHA = 2.0
THRESHOLDS = (1e-6, 1e-5, 1e-4)
THINNED = (1.3, 1.0, 0.2)
"""Density at these, relative to that at EPSILON."""

LAYERS = 4
SIZES = {
    "mlp.gate_proj.weight": 67_895_296,
    "mlp.up_proj.weight": 67_895_296,
    "self_attn.q_proj.bias": 3_584,
    "self_attn.q_proj.weight": 12_845_056,
}
EMBEDDING = "model.embed_tokens.weight"
EMBEDDING_SIZE = 544_997_376


@dataclass(frozen=True)
class Sketch:
    """An agent's density and the percentages of its overlap degree."""

    model: str
    density: float
    degree: tuple[float, ...]


PAPER = (
    Sketch("Gen-Verse/ReasonFlux-Coder-7B", 0.032, (6.3, 49.1, 44.6)),
    Sketch("emrecanacikgoz/Qwen2.5-7B-Instruct-ToolRL-grpo-cold", 0.462, (40.8, 56.1, 3.1)),
    Sketch("BytedTsinghua-SIA/RL-MemoryAgent-7B", 0.543, (47.5, 49.9, 2.6)),
)
"""The agents of the paper and their overlap."""


def sizes() -> dict[str, int]:
    layers = {
        f"model.layers.{layer}.{module}": size
        for layer in range(LAYERS)
        for module, size in SIZES.items()
    }
    return {EMBEDDING: EMBEDDING_SIZE, **layers}


def statistics(sketches: tuple[Sketch, ...], thinned: float = 1.0) -> OverlapStatistics:
    return OverlapStatistics(
        tensors=tuple(
            TensorOverlap(
                name=name,
                numel=numel,
                agents=tuple(
                    AgentCounts(
                        model=sketch.model,
                        overlap_degree=tuple(
                            # Later tensors have changed a little more.
                            round(
                                numel * min(1.0, sketch.density * thinned * (1 + n / 40)) * p / 100
                            )
                            for p in sketch.degree
                        ),
                    )
                    for sketch in sketches
                ),
            )
            for n, (name, numel) in enumerate(sizes().items())
        )
    )


def inspection(sketches: tuple[Sketch, ...] = PAPER) -> OverlapRecord:
    """With all that an inspection computes."""
    merged = merge(sketches)
    return merged.model_copy(
        update={
            "kind": "inspection",
            "agents": tuple(
                agent.model_copy(update=_energies(number))
                for number, agent in enumerate(merged.agents)
            ),
            "pairwise": _pairs(sketches),
            "thresholds": tuple(
                _threshold(sketches, epsilon, thinned)
                for epsilon, thinned in zip(THRESHOLDS, THINNED, strict=True)
            ),
            "findings": (Finding(code="clipped", text=f"{sketches[0].model}: α clips its λ."),),
        }
    )


def sampled(sketches: tuple[Sketch, ...] = PAPER) -> OverlapRecord:
    """With intervals of 5 % to both sides."""
    whole = inspection(sketches)
    assert whole.pairwise is not None
    assert whole.thresholds is not None
    return whole.model_copy(
        update={
            "sample": SampleRecord(
                fraction=0.01, seed=0, parameters=round(whole.parameters * 0.01)
            ),
            "agents": tuple(
                agent.model_copy(
                    update={"interval": _around(agent, "density", "active", "retained_ram")}
                )
                for agent in whole.agents
            ),
            "pairwise": tuple(
                pair.model_copy(update={"interval": _around(pair, "jaccard", "both")})
                for pair in whole.pairwise
            ),
            "thresholds": tuple(
                threshold.model_copy(
                    update={
                        "agents": tuple(
                            agent.model_copy(update={"interval": _around(agent, "density")})
                            for agent in threshold.agents
                        )
                    }
                )
                for threshold in whole.thresholds
            ),
        }
    )


def merge(
    sketches: tuple[Sketch, ...] = PAPER,
    r: Setting | None = R,
    alpha: Setting | None = ALPHA,
    method: str = "ram_plus",
) -> OverlapRecord:
    """With the counts alone."""
    counted = statistics(sketches)
    return OverlapRecord(
        kind="merge",
        merge_method=method,
        base="Qwen/Qwen2.5-7B-Instruct",
        epsilon=EPSILON,
        parameters=counted.parameters,
        settings=Settings(epsilon=EPSILON, scale=1.0, overlap_power=1.0, r=r, alpha=alpha),
        out_dtype="bfloat16",
        agents=tuple(_agent(agent) for agent in counted.agents),
        tensors=tuple(_tensor(tensor, counted) for tensor in counted.tensors),
        seconds=75.4,
        models=tuple(ModelRecord(model=sketch.model, files=()) for sketch in sketches),
        versions=Versions(mergekit_ram="0.2.0", mergekit="0.1.5", torch="2.13.0"),
    )


def _agent(agent: AgentOverlap) -> AgentRecord:
    return AgentRecord(
        model=agent.model,
        weight=1.0,
        overlap_degree=agent.overlap_degree,
        parameters=agent.parameters,
        rescale=agent.rescale(R, ALPHA),
        clipped=agent.overlap_unique_ratio > ALPHA,
    )


def _tensor(tensor: TensorOverlap, counted: OverlapStatistics) -> TensorRecord:
    return TensorRecord(
        name=tensor.name,
        numel=tensor.numel,
        epsilon=EPSILON,
        agents=tuple(
            TensorAgent(
                model=agent.model,
                weight=1.0,
                overlap_degree=agent.overlap_degree,
                rescale=counted.agent(agent.model).rescale(R, ALPHA),
            )
            for agent in tensor.agents
        ),
        loading="0123456789abcdef",
    )


def _energies(number: int) -> dict[str, float]:
    ram = 0.62 + 0.07 * (number % 4)
    return {
        "energy": 4.0 + number,
        "unique_energy": 1.5 + number,
        "shared_energy": 1.0,
        "retained": ram + 0.1,
        "retained_ram": ram,
        "retained_ram_plus": ram + 0.1,
        "retained_mean": 0.34,
        "whole_rescale": 1.9,
        "realised_rescale": 1.12 - 0.01 * number,
        "rescale_effect": 0.45,
    }


def _pairs(sketches: tuple[Sketch, ...]) -> tuple[PairRecord, ...]:
    return tuple(
        PairRecord(
            first=first.model,
            second=second.model,
            both=round(1e9 * min(first.density, second.density)),
            jaccard=min(first.density, second.density) / 2,
            cosine=0.02,
            sign_conflicts=0.49,
        )
        for first, second in combinations(sketches, 2)
    )


def _threshold(sketches: tuple[Sketch, ...], epsilon: float, thinned: float) -> ThresholdRecord:
    counted = statistics(sketches, thinned)
    return ThresholdRecord(
        epsilon=epsilon,
        agents=tuple(
            ThresholdAgent(
                model=agent.model,
                overlap_degree=agent.overlap_degree,
                parameters=agent.parameters,
                rescale=agent.rescale(R, ALPHA),
            )
            for agent in counted.agents
        ),
    )


def _around(of: AgentRecord | PairRecord | ThresholdAgent, *fields: str) -> Intervals:
    return {field: (getattr(of, field) * 0.95, getattr(of, field) * 1.05) for field in fields}
