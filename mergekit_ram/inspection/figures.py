"""The figures of agents, pairs and layers from sums, with 95 % intervals where rows are sampled.

An interval reaches from the smallest to the largest value in any replicate of the sums: the ten
groups of rows, each by itself, and with rows added that were not sampled. It is None where that
does not bound a figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from mergekit_ram.inspection.sample import GROUPS
from mergekit_ram.inspection.sums import OF_THREE, Factor, Sums, TensorSums
from mergekit_ram.kernels.energies import Array
from mergekit_ram.models.groups import AgentPlaces
from mergekit_ram.overlap import AgentOverlap
from mergekit_ram.record.layers import Place, layer_records
from mergekit_ram.record.merge import agent_record, factors
from mergekit_ram.record.schema import (
    AgentRecord,
    Intervals,
    LayerRecord,
    PairRecord,
    TensorRecord,
    ThresholdAgent,
    ThresholdRecord,
)

RETAINED = {"ram": "retained_ram", "ram_directions": "retained_directions"}
"""Fields for what a method keeps; for all others it is that of ``ram_plus``."""

MOST_OF_ONE = 0.2
"""Of an agent's energy, in one of the ten groups of rows. Where one has so much, some rows weigh so
much more than others that energies of rows that were not sampled are unknown."""

Changed = TypeVar("Changed", LayerRecord, TensorRecord)

Figures = dict[str, Array]
"""``[replicates]`` by field of a record; not finite where a figure is undefined."""


def agent_records(
    sums: Sums, places: dict[str, AgentPlaces], method: str
) -> tuple[AgentRecord, ...]:
    """What every agent changed, and what a merge keeps of it.

    Args:
        sums: complete, of the whole model.
        places: the merges that every agent is part of, by ``ram_plus``.
        method: as configured; ``retained`` is that of one of our methods.
    """
    return tuple(
        _agent(sums, number, places[name], method) for number, name in enumerate(sums.agents)
    )


def _agent(sums: Sums, number: int, places: AgentPlaces, method: str) -> AgentRecord:
    counted = _counted(sums, number, 0, places)
    energies = _energies(sums, number, counted)
    shares = {
        f"overlap_share.{others}": _ratio(degree, counted["active"])
        for others, degree in enumerate(np.rint(sums.degree[:, 0, number]).T)
    }
    first = {name: _number(values) for name, values in energies.items()}
    if sums.directions is not None:
        kept, rank, size = sums.directions.of_agent(number)
        first["retained_directions"] = _number(_ratio(kept, energies["energy"]))
        first["effective_rank"] = rank / size if size else None
    chosen = RETAINED.get(method, "retained_ram_plus")
    first["retained"] = first.get(chosen)
    intervals = _intervals(counted | shares)
    if intervals is not None:
        energies |= {"retained": energies[chosen]} if chosen in energies else {}
        intervals |= _intervals(energies, is_known=not _is_uneven(sums)[number]) or {}
    return agent_record(_overlap(sums, number), places, **first, interval=intervals)


def _overlap(sums: Sums, number: int, threshold: int = 0) -> AgentOverlap:
    """An agent's counts, rounded once where they are estimates."""
    return AgentOverlap(
        model=sums.agents[number],
        overlap_degree=tuple(map(int, np.rint(sums.degree[0, threshold, number]))),
        parameters=sums.parameters,
    )


def _counted(sums: Sums, number: int, threshold: int, places: AgentPlaces) -> Figures:
    """The figures of an agent that come from its counts."""
    degree = np.rint(sums.degree[:, threshold, number])
    active, unique = degree.sum(axis=1), degree[:, 0]
    shared = active - unique
    ratio = np.where(unique > 0, shared / np.maximum(1, unique), np.where(shared > 0, np.inf, 0.0))
    figures = {
        "active": active,
        "shared": shared,
        "unique": unique,
        "density": active / max(1, sums.parameters),
        "overlap_unique_ratio": ratio,
    }
    if not isinstance(factors(_overlap(sums, number, threshold), places), tuple):
        found = {Factor.of(merge, model) for merge, model in places}
        at_work = {factor for factor in found if factor.weight} or found
        figures["rescale"] = np.concatenate([factor.rescale(ratio) for factor in at_work])
    return figures


def _energies(sums: Sums, number: int, counted: Figures) -> Figures:
    """The figures of an agent that come from its energies."""
    energy, unique, shared, mean = sums.energies[:, :, number].T
    ratio = counted["overlap_unique_ratio"]
    plain, scaled, scaled_by_first = np.zeros((3, len(ratio)))
    for factor, own in sums.unique[number].items():
        plain += factor.size * own
        scaled += factor.size * own * factor.rescale(ratio)
        scaled_by_first += factor.size * own * factor.rescale(ratio[:1])
    figures = {
        "energy": energy,
        "unique_energy": unique,
        "shared_energy": shared,
        "retained_ram": _ratio(plain + shared, energy),
        "retained_ram_plus": _ratio(scaled + shared, energy),
        "retained_mean": _ratio(mean, energy),
        "whole_rescale": _ratio(energy - shared, plain),
    }
    if sums.is_realised:
        # All was merged by the λ of the whole sample. To first order what the output changes by
        # grows with the λ of a replicate, and how often it changes at all with that λ − 1.
        step, changed = sums.realised[:, :, number].T
        step = step * np.nan_to_num(_ratio(scaled, scaled_by_first), nan=1.0)
        changed = changed * np.nan_to_num(_ratio(scaled - plain, scaled_by_first - plain), nan=1.0)
        figures["realised_rescale"] = _ratio(step, plain)
        figures["rescale_effect"] = np.clip(_ratio(changed, counted["unique"]), 0, 1)
    return figures


def pair_records(sums: Sums) -> tuple[PairRecord, ...]:
    """How the updates of every two agents meet."""
    return tuple(_pair(sums, a, b) for a, b in itertools.combinations(range(len(sums.agents)), 2))


def _pair(sums: Sums, a: int, b: int) -> PairRecord:
    active = sums.degree[:, 0].sum(axis=-1)
    both, dot, square, agreement = sums.pairs[:, :, a, b].T
    counted = {
        "both": both,
        "jaccard": _ratio(both, active[:, a] + active[:, b] - both),
        "sign_conflicts": _ratio((both - agreement) / 2, both),
    }
    cosine = {"cosine": _ratio(dot, np.sqrt(square * sums.pairs[:, 2, b, a]))}
    intervals, directions = _intervals(counted), sums.directions
    if intervals is not None:
        intervals |= _intervals(cosine, is_known=not _is_uneven(sums)[[a, b]].any()) or {}
    first = {name: _number(values) for name, values in (counted | cosine).items()}
    if directions is not None and directions.both[a, b]:
        first["gram_cosine"] = float(directions.cosine[a, b] / directions.both[a, b])
    return PairRecord.model_validate(
        {
            **first,
            "first": sums.agents[a],
            "second": sums.agents[b],
            "both": round(float(both[0])),
            "interval": intervals,
        }
    )


def threshold_records(
    sums: Sums, places: dict[str, AgentPlaces], thresholds: Sequence[float]
) -> tuple[ThresholdRecord, ...] | None:
    """The agents at further thresholds, in the order in which they were counted."""
    return (
        tuple(
            ThresholdRecord(
                epsilon=epsilon,
                agents=tuple(
                    _threshold_agent(sums, agent, number, places[name])
                    for agent, name in enumerate(sums.agents)
                ),
            )
            for number, epsilon in enumerate(thresholds, start=1)
        )
        or None
    )


def _threshold_agent(
    sums: Sums, number: int, threshold: int, places: AgentPlaces
) -> ThresholdAgent:
    overlap, figures = _overlap(sums, number, threshold), _counted(sums, number, threshold, places)
    figures["unique_share"] = _ratio(figures["unique"], figures["active"])
    return ThresholdAgent(
        model=overlap.model,
        overlap_degree=overlap.overlap_degree,
        parameters=overlap.parameters,
        rescale=factors(overlap, places),
        interval=_intervals(figures),
    )


def tensor_changes(sums: Sums, records: Sequence[TensorRecord]) -> tuple[TensorRecord, ...]:
    """The records of all tensors, with the intervals of a sample."""
    return tuple(
        _with_interval(record, [own]) for record, own in zip(records, sums.tensors, strict=True)
    )


def layer_changes(sums: Sums, records: Sequence[TensorRecord]) -> tuple[LayerRecord, ...]:
    """The change of every layer, with the intervals of a sample."""
    members: dict[str, list[TensorSums]] = {}
    for tensor in sums.tensors:
        members.setdefault(Place.of(tensor.counts.name).layer, []).append(tensor)
    return tuple(_with_interval(layer, members[layer.name]) for layer in layer_records(records))


def _with_interval(record: Changed, tensors: Sequence[TensorSums]) -> Changed:
    changed = np.sum([tensor.changed for tensor in tensors], axis=0)
    if len(changed) == 1:
        return record
    missed = OF_THREE * max(tensor.row for tensor in tensors)
    ends = np.clip((changed.min() - missed, changed.max() + missed), 0, record.numel)
    interval = tuple((ends / max(1, record.numel)).tolist())
    return record.model_copy(update={"interval": {"change": interval}})


def _is_uneven(sums: Sums) -> Array:
    """``[N]`` whether an agent's energy is mostly in a few of the sampled rows, or not seen."""
    groups = sums.energies[1 : 1 + GROUPS, 0]
    return np.asarray(groups.max(axis=0) >= MOST_OF_ONE * groups.sum(axis=0))


def _intervals(figures: Figures, is_known: bool = True) -> Intervals | None:
    """The intervals of figures that are defined; None where there is one replicate."""
    if len(next(iter(figures.values()))) == 1:
        return None
    return {
        name: (float(values.min()), float(values.max()))
        if is_known and np.isfinite(values).all()
        else None
        for name, values in figures.items()
        if np.isfinite(values[0])
    }


def _ratio(value: Array | float, by: Array) -> Array:
    """One divided by the other, NaN where that is undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(by == 0, np.nan, np.divide(value, by))


def _number(values: Array) -> float | None:
    return float(values[0]) if np.isfinite(values[0]) else None
