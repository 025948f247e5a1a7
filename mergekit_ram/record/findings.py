"""What the figures of a record say, in plain words; each is said only where it is true."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from mergekit_ram.errors import Note
from mergekit_ram.overlap import (
    LARGE_RESCALE,
    LARGE_RESCALE_ADVICE,
    SUSPICIOUS_DENSITY,
    AgentOverlap,
)
from mergekit_ram.record.layers import different, untouched_parts
from mergekit_ram.record.schema import AgentRecord, Finding, OverlapRecord
from mergekit_ram.text import some

FEW_UNIQUE = 0.01
"""Share of unique among its changed parameters below which λ has nothing to act on."""

OPPOSED = -0.1
"""Cosine of two agents from which down they undo each other where they meet."""

HALF = 0.5
"""Of λ − 1: less than that survives the output dtype."""


def findings_of(record: OverlapRecord) -> tuple[Finding, ...]:
    """All findings, those about the whole model first; each names all agents that it holds for."""
    return (*_about_model(record), *_about_agents(record))


def noted(notes: Iterable[Note]) -> tuple[Finding, ...]:
    """The warnings of a plan as findings."""
    # A note of several sentences has its full stop already.
    return tuple(Finding(code=note.code, text=f"{note.text.rstrip('.')}.") for note in notes)


def _about_model(record: OverlapRecord) -> Iterator[Finding]:
    changing = [agent for agent in record.agents if agent.active]
    # In some tensors a λ may be given by hand.
    if len({agent.rescale for agent in changing}) == 1 and all(a.clipped for a in changing):
        yield Finding(
            code="all-clipped",
            text="Every agent's ρ is above α, so that all get the same λ: it says nothing about "
            "them. That is no reason for a larger alpha, which would only exaggerate the few "
            "parameters that each changed alone.",
        )
    cosines = [(pair.cosine or 0.0, pair) for pair in record.pairwise or ()]
    opposed = [
        f"{pair.first} and {pair.second} ({cosine:.2f})"
        for cosine, pair in sorted(cosines, key=lambda found: found[0])
        if cosine < OPPOSED
    ]
    if opposed:
        yield Finding(
            code="opposed-agents",
            text=f"Where both changed a weight, {some(opposed)} move it in opposite directions "
            "(cosine). Evaluate the merge without one of them too.",
        )
    untouched = list(untouched_parts(record.tensors)) if changing else []
    if untouched:
        text = f"Changed by no agent: {some(untouched)}."
        yield Finding(code="untouched-tensors", text=text)


def _about_agents(record: OverlapRecord) -> Iterator[Finding]:
    changing = [agent for agent in record.agents if agent.active]
    yield from findings_at_once(
        (agent, different(agent.rescale)) for agent in record.agents if agent.weight != 0
    )
    few = {
        agent.model: f"{100 * agent.unique / agent.active:.2g} %"
        for agent in changing
        if len(changing) > 1 and agent.unique < FEW_UNIQUE * agent.active
    }
    if record.merge_method == "ram_directions":
        return
    yield from _found(
        "few-unique",
        "Of what {} changed, next to nothing is unique: ram and ram_plus dilute it as averaging "
        "does, and λ has nothing to act on.",
        few,
    )
    lost = {} if few else {agent.model: _lost_rescale(agent) for agent in changing}
    yield from _found(
        "rescale-lost",
        f"λ of {{}} is mostly rounded away in {record.out_dtype}. `out_dtype: float32` keeps it.",
        {name: said for name, said in lost.items() if said},
    )


def findings_at_once(
    agents: Iterable[tuple[AgentRecord | AgentOverlap, Collection[float]]],
) -> Iterator[Finding]:
    """The findings that are warned of as soon as all is counted.

    Args:
        agents: those that take part, with their different λ.
    """
    agents = list(agents)
    idle = {agent.model: "" for agent, _ in agents if not agent.active}
    text = (
        "{} equals the base within ε and contributes nothing; such a folder is often an export "
        "without its LoRA adapter."
    )
    yield from _found("equals-base", text, idle)
    yield from _found(
        "dense-agent",
        "{} changed nearly all parameters: this is no sparse update, or not the base of its "
        "training.",
        {a.model: f"{100 * a.density:.1f} %" for a, _ in agents if a.density > SUSPICIOUS_DENSITY},
    )
    large = {agent.model: max(factors) for agent, factors in agents if agent.active}
    yield from _found(
        "large-rescale",
        f"λ of {{}} is above {LARGE_RESCALE:g}: {LARGE_RESCALE_ADVICE}",
        {name: f"{value:.4g}" for name, value in large.items() if value > LARGE_RESCALE},
    )


def _found(code: str, text: str, agents: Mapping[str, str]) -> Iterator[Finding]:
    """One finding about all agents that it holds for, each with a figure in parentheses."""
    names = [f"{name} ({figure})" if figure else name for name, figure in agents.items()]
    if names:
        yield Finding(code=code, text=text.format(", ".join(names)))


def _lost_rescale(agent: AgentRecord) -> str:
    """How little of λ − 1 survives the output dtype; empty where most does, or it is unknown."""
    wanted, *others = different(agent.rescale)
    if agent.realised_rescale is None or others or wanted == 1:
        return ""
    kept = (agent.realised_rescale - 1) / (wanted - 1)
    survives = f"{100 * max(0.0, kept):.0f} % of λ − 1 survives"
    became = f"{wanted:.3f} becomes {agent.realised_rescale:.3f}"
    return f"{survives}: {became}" if kept < HALF else ""
