"""The figures of agents and pairs, from sums over the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.strata import Stratum, Totals
from mergekit_ram.merges.groups import factor_of
from mergekit_ram.overlap import AgentOverlap
from mergekit_ram.record.build import agent_record
from mergekit_ram.record.schema import AgentRecord, PairRecord, ThresholdAgent


def agent_figures(
    name: str,
    place: int,
    total: Totals,
    merges: Sequence[ExecuteMergeMethodTask],
    kept: tuple[float, float],
    method: str,
) -> AgentRecord:
    """What an agent changed, and what the merge keeps of it.

    Args:
        name: of the agent.
        place: of the agent in the totals.
        total: the sums.
        merges: of every weight of the output, once.
        kept: of the agent, by :func:`unique_kept`.
        method: as configured; ``retained`` is that of ``ram`` or of ``ram_plus``.
    """
    overlap = total.overlap(name, total.degree)
    energy, unique, shared, mean = (
        float(total.measures[f"{kind}energy"][place])
        for kind in ("", "unique_", "shared_", "mean_")
    )
    scaled, plain = kept
    retained = {
        "retained_ram": _divided(plain + shared, energy),
        "retained_ram_plus": _divided(scaled + shared, energy),
        "retained_mean": _divided(mean, energy),
    }
    by_method = "retained_ram" if method == "ram" else "retained_ram_plus"
    step, changed = (
        float(total.realised[name][place]) if total.is_realised else None
        for name in ("step", "changed")
    )
    return agent_record(
        overlap,
        merges,
        energy=energy,
        unique_energy=unique,
        shared_energy=shared,
        retained=retained[by_method],
        **retained,
        whole_rescale=_divided(energy - shared, plain),
        realised_rescale=_divided(step, plain),
        rescale_effect=_divided(changed, overlap.unique),
    )


def unique_kept(
    strata: Sequence[Stratum], agent: AgentOverlap, without: int | None
) -> tuple[float, float]:
    """Σ s w λ τ² over the unique parameters of an agent, and the same with λ = 1."""
    kept = plain = 0.0
    for stratum in strata:
        merge, model = stratum.merge, stratum.model_of(agent.model)
        if model is not None:
            energy = stratum.unique_energy(agent.model, without)
            energy *= merge.parameters["scale"] * merge.input_parameters[model]["weight"]
            plain += energy
            kept += energy * factor_of(merge, model, agent)
    return kept, plain


def pair_figures(names: Sequence[str], total: Totals) -> Iterator[PairRecord]:
    """How the updates of every two agents meet."""
    sums = total.measures
    active = total.degree.sum(axis=1)
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
            )


def threshold_figures(overlap: AgentOverlap, r: float, alpha: float) -> ThresholdAgent:
    """An agent at one ε."""
    return ThresholdAgent(
        model=overlap.model,
        active=overlap.active,
        shared=overlap.shared,
        unique=overlap.unique,
        density=overlap.density,
        unique_share=_divided(overlap.unique, overlap.active),
        overlap_unique_ratio=overlap.finite_ratio,
        rescale=overlap.rescale(r, alpha),
    )


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None or by == 0 else float(value / by)
