"""What the figures of a record say, in plain words; each is said only where it is true."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from mergekit_ram.merges.notes import Note
from mergekit_ram.overlap import LARGE_RESCALE, LARGE_RESCALE_ADVICE, SUSPICIOUS_DENSITY
from mergekit_ram.record.build import Place
from mergekit_ram.record.schema import AgentRecord, Finding, OverlapRecord, Setting, TensorRecord

FEW_UNIQUE = 0.01
"""Share of unique among its changed parameters below which λ has nothing to act on."""

MOSTLY_SHARED = 4.0
"""ρ from which on, in every agent, RAM at its defaults loses; measured in docs/results.md."""

ANOTHER_RULE = (
    "Take ram_directions, a lower overlap_power (0.5 or 0.25), or tuned task arithmetic; "
    "docs/results.md has what each gave."
)

HALF = 0.5
"""Of λ − 1: less than that survives the output dtype."""

NAMED = 3
"""Parts of the model that a finding names."""

NOTEWORTHY_SHARE = 0.01
"""Of all parameters: a kind of tensors with fewer is too small to be news."""

_EXPERT = re.compile(r"\bexperts\.(\d+)\.")


def findings_of(record: OverlapRecord) -> tuple[Finding, ...]:
    """All findings, those on all agents first."""
    found = [*_about_all(record)]
    for agent in record.agents:
        found += _about(agent, record)
    return tuple(found)


def noted(notes: Iterable[Note]) -> tuple[Finding, ...]:
    """What a plan had to say about its models, as findings."""
    # A note of several sentences has its full stop already.
    return tuple(Finding(code=note.code, text=f"{note.text.rstrip('.')}.") for note in notes)


def _about_all(record: OverlapRecord) -> Iterator[Finding]:
    changing = [agent for agent in record.agents if agent.active]
    if _is_same_by_clipping(changing):
        yield Finding(
            code="all-clipped",
            text="Every agent's ρ is above α, so that all get the same λ: it says nothing about "
            "them. That is no reason for a larger alpha, which would only exaggerate the few "
            "parameters that each changed alone.",
        )
    if _is_by_weights(record) and len(changing) > 1 and all(map(_shares_most, changing)):
        yield Finding(
            code="same-weights",
            text=f"Every agent shares at least {MOSTLY_SHARED:g} of its changed parameters for "
            "each that is its own (ρ): they changed the same weights, and RAM is then near the "
            f"mean, which dilutes them. {ANOTHER_RULE}",
        )
    untouched = list(untouched_parts(record.tensors)) if changing else []
    if untouched:
        more = f" and {len(untouched) - NAMED} more" if len(untouched) > NAMED else ""
        yield Finding(
            code="untouched-tensors",
            text=f"Changed by no agent: {', '.join(untouched[:NAMED])}{more}.",
        )


def _is_same_by_clipping(agents: Sequence[AgentRecord]) -> bool:
    """Whether α gives all of these agents the same λ; in some tensors one may be by hand."""
    clipped = all(agent.clipped for agent in agents)
    return clipped and len({agent.rescale for agent in agents}) == 1


def _is_by_weights(record: OverlapRecord) -> bool:
    """Whether the method decides weight by weight; that of the advice below does not."""
    return record.merge_method != "ram_directions"


def _shares_most(agent: AgentRecord) -> bool:
    ratio = agent.overlap_unique_ratio
    return ratio is None or ratio >= MOSTLY_SHARED


def _about(agent: AgentRecord, record: OverlapRecord) -> Iterator[Finding]:
    if not agent.active:
        if agent.weight != 0:
            yield Finding(
                code="equals-base",
                text=f"{agent.model} equals the base within ε everywhere and contributes nothing.",
            )
        return
    if agent.density > SUSPICIOUS_DENSITY:
        yield Finding(
            code="dense-agent",
            text=f"{agent.model} changed {100 * agent.density:.1f} % of all parameters: this is "
            "no sparse update, or not the base that it was trained from.",
        )
    is_alone = len(record.agents) < 2
    if _is_by_weights(record) and not is_alone and agent.unique < FEW_UNIQUE * agent.active:
        yield Finding(
            code="few-unique",
            text=f"Of what {agent.model} changed, {100 * agent.unique / agent.active:.2g} % is "
            "unique: RAM dilutes it as averaging does, and λ has next to nothing to act on. "
            f"{ANOTHER_RULE}",
        )
    largest = max(agent.rescale) if isinstance(agent.rescale, tuple) else agent.rescale
    if largest > LARGE_RESCALE:
        yield Finding(
            code="large-rescale",
            text=f"λ of {agent.model} is {largest:.4g}: {LARGE_RESCALE_ADVICE}",
        )
    yield from _about_rounding(agent, record)


def _about_rounding(agent: AgentRecord, record: OverlapRecord) -> Iterator[Finding]:
    wanted = _single(agent.rescale)
    if agent.realised_rescale is None or wanted is None or wanted == 1:
        return
    kept = (agent.realised_rescale - 1) / (wanted - 1)
    if kept < HALF:
        yield Finding(
            code="rescale-lost",
            text=f"Of λ − 1 of {agent.model}, {100 * max(0.0, kept):.0f} % survives in "
            f"{record.out_dtype}: λ is {wanted:.3f} and becomes {agent.realised_rescale:.3f}. "
            "`out_dtype: float32` keeps it.",
        )


def _single(value: Setting) -> float | None:
    return None if isinstance(value, tuple) else value


def untouched_parts(tensors: Sequence[TensorRecord]) -> Iterator[str]:
    """Names of layers, experts and kinds of which no agent changed anything."""
    tensors = [tensor for tensor in tensors if tensor.numel]
    layers = _untouched(tensors, lambda tensor: _layer(tensor.name))
    yield from (f"layer {layer}" for layer in layers)
    rest = [tensor for tensor in tensors if _layer(tensor.name) not in layers]
    kinds = _untouched(rest, lambda tensor: _kind(tensor.name))
    least = NOTEWORTHY_SHARE * sum(tensor.numel for tensor in tensors)
    for kind, own in kinds.items():
        if sum(tensor.numel for tensor in own) >= least:
            yield kind
    rest = [tensor for tensor in rest if _kind(tensor.name) not in kinds]
    yield from _untouched(rest, lambda tensor: _expert(tensor.name))


def _untouched(
    tensors: Iterable[TensorRecord], part_of: Callable[[TensorRecord], str | None]
) -> dict[str, list[TensorRecord]]:
    """The parts of which no tensor changed, with their tensors."""
    parts: dict[str, list[TensorRecord]] = {}
    for tensor in tensors:
        part = part_of(tensor)
        if part is not None:
            parts.setdefault(part, []).append(tensor)
    return {part: own for part, own in parts.items() if not any(one.change for one in own)}


def _layer(name: str) -> str | None:
    place = Place.of(name)
    return None if place.number is None else place.layer


def _kind(name: str) -> str:
    place = Place.of(name)
    if place.number is None:
        return place.module
    return "every " + f"{place.stack}.*.{place.module}".lstrip(".")


def _expert(name: str) -> str | None:
    found = _EXPERT.search(name)
    return None if found is None else f"expert {found[1]} of {_layer(name)}"
