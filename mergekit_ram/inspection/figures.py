"""The figures of agents and pairs, from sums over the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.strata import Array, Stratum, Totals
from mergekit_ram.merges.groups import AgentPlaces, factor_of
from mergekit_ram.overlap import AgentOverlap
from mergekit_ram.record.merge import agent_record
from mergekit_ram.record.schema import AgentRecord, PairRecord

RETAINED = {"ram": "retained_ram", "ram_directions": "retained_directions"}
"""Fields of what a method keeps; of all others it is that of ``ram_plus``."""


@dataclass(frozen=True)
class UniqueEnergy:
    """Σ s w τ² over an agent's unique parameters in the tensors that have one λ."""

    merge: ExecuteMergeMethodTask
    """Of one of these tensors."""
    model: ModelReference
    energy: Array
    """``[versions]``"""

    @classmethod
    def of(cls, agent: str, strata: Sequence[Stratum], versions: int) -> list[UniqueEnergy]:
        """What there is of an agent, by what decides its λ."""
        found: dict[tuple[object, ...], UniqueEnergy] = {}
        for stratum in strata:
            if agent not in stratum.at_work:
                continue
            place = stratum.at_work.index(agent)
            merge, model = stratum.merge, stratum.models[place]
            own, shared = merge.input_parameters[model], merge.parameters
            energy = stratum.unique_energy(place, versions) * (shared["scale"] * own["weight"])
            key = (shared["r"], shared["alpha"], own["rescale"])
            before = found[key].energy if key in found else 0.0
            found[key] = cls(merge, model, before + energy)
        return list(found.values())

    def rescaled(self, agent: AgentOverlap, version: int) -> float:
        """The same times λ."""
        return float(self.energy[version]) * factor_of(self.merge, self.model, agent)


def rescaled_anew(
    sums: dict[str, float], kept: tuple[float, float], at_first: float
) -> dict[str, float]:
    """What would have been realised of the λ that a part of a sample gives.

    All of it was merged by the λ of the whole sample. To first order what the output changes by
    grows with λ, and how often it changes at all with λ − 1.

    Args:
        sums: of that part, by name.
        kept: Σ s w λ τ² over its unique parameters, and the same with λ = 1.
        at_first: Σ s w λ τ² with the λ of the whole sample.
    """
    scaled, plain = kept
    if "step" not in sums or scaled == at_first:
        return sums
    more = {}
    if at_first:
        more["step"] = sums["step"] * scaled / at_first
    if at_first != plain:
        more["changed"] = sums["changed"] * (scaled - plain) / (at_first - plain)
    return {**sums, **more}


def agent_figures(
    overlap: AgentOverlap,
    total: dict[str, float],
    places: AgentPlaces,
    kept: tuple[float, float],
    method: str,
    directions: tuple[float, float, float] | None = None,
) -> AgentRecord:
    """What an agent changed, and what the merge keeps of it.

    Args:
        overlap: its counts.
        total: its sums by name; those of what was realised may be missing.
        places: the merges that it is part of.
        kept: Σ s w λ τ² over its unique parameters, and the same with λ = 1.
        method: as configured; ``retained`` is that of one of our methods.
        directions: Σ s X · τ by ``ram_directions``, the sum of effective ranks, and what it is
            divided by.
    """
    by_directions, rank, weight = directions or (None, None, 0.0)
    energy, shared = total["energy"], total["shared_energy"]
    scaled, plain = kept
    retained = {
        "retained_ram": _divided(plain + shared, energy),
        "retained_ram_plus": _divided(scaled + shared, energy),
        "retained_directions": _divided(by_directions, energy),
        "retained_mean": _divided(total["mean_energy"], energy),
    }
    by_method = RETAINED.get(method, "retained_ram_plus")
    effect = _divided(total.get("changed"), overlap.unique)
    return agent_record(
        overlap,
        places,
        energy=energy,
        unique_energy=total["unique_energy"],
        shared_energy=shared,
        retained=retained[by_method],
        **retained,
        effective_rank=_divided(rank, weight),
        whole_rescale=_divided(energy - shared, plain),
        realised_rescale=_divided(total.get("step"), plain),
        # The count is rounded, and the other a first-order estimate.
        rescale_effect=None if effect is None else min(1.0, max(0.0, effect)),
    )


def pair_figures(names: Sequence[str], total: Totals, version: int) -> Iterator[PairRecord]:
    """How the updates of every two agents meet."""
    sums, active = total.pairs(version), total.active(version)
    directions = total.directions
    for a in range(len(names)):
        for b in range(a + 1, len(names)):
            both = sums["both"][a, b]
            lengths = np.sqrt(sums["square"][a, b] * sums["square"][b, a])
            yield PairRecord(
                first=names[a],
                second=names[b],
                both=round(float(both)),
                jaccard=_divided(both, active[a] + active[b] - both),
                cosine=_divided(sums["dot"][a, b], float(lengths)),
                sign_conflicts=_divided((both - sums["agreement"][a, b]) / 2, both),
                gram_cosine=None
                if directions is None
                else _divided(directions.cosine[a, b], directions.both[a, b]),
            )


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None or by == 0 else float(value / by)
