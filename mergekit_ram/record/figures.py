"""What must hold among the figures that stand in a record beside the counts of its tensors.

Where figures are estimates from a sample, each is rounded by itself, and less is exact.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mergekit_ram.record.columns import Setting, TensorRecord
from mergekit_ram.record.invariants import CLOSE, AgentSums, wrong_ratio
from mergekit_ram.record.parts import LayerRecord, PairRecord, ThresholdAgent, ThresholdRecord

SLACK = 1e-4
"""By which a figure that was reckoned in float32 may lie beyond what it can be."""


class AgentFigures(AgentSums, Protocol):
    """An agent's counts and λ, and the figures that have bounds."""

    @property
    def overlap_share(self) -> tuple[float, ...]: ...
    @property
    def effective_rank(self) -> float | None: ...
    @property
    def rescale_effect(self) -> float | None: ...
    @property
    def rescale(self) -> Setting: ...


@dataclass(frozen=True)
class Figures:
    """The part of a record that is shown and that no merge is computed from."""

    parameters: int
    agents: Sequence[AgentFigures]
    tensors: Sequence[TensorRecord]
    pairs: Sequence[PairRecord] | None
    thresholds: Sequence[ThresholdRecord] | None
    layers: Sequence[LayerRecord]
    seconds: float
    seen: int | None
    """Parameters that a sample looked at."""
    exact: bool
    """False: estimates from a sample."""

    @property
    def names(self) -> list[str]:
        """Of the agents, in the order of the record."""
        return [agent.model for agent in self.agents]


def beyond(figures: Figures) -> str | None:
    """The first figure that cannot be, with its place and value; None where all can."""
    return next(_problems(figures), None)


def _problems(figures: Figures) -> Iterator[str]:
    if figures.seconds < 0:
        yield f"seconds is {figures.seconds:g}, and no time is below 0"
    if figures.seen is not None and not 0 <= figures.seen <= figures.parameters:
        yield f"sample: {figures.seen:,} parameters of {figures.parameters:,}"
    for layer in figures.layers:
        for problem in _no_share("change", layer.change):
            yield f"layer {layer.name}: {problem}"
    for agent in figures.agents:
        for problem in _of_agent(agent, figures):
            yield f"agent {agent.model}: {problem}"
    if figures.exact:
        yield from _factors(figures)
    if figures.pairs is not None:
        for problem in _of_pairs(figures.pairs, figures):
            yield f"pairwise: {problem}"
    for threshold in figures.thresholds or ():
        if threshold.epsilon < 0:
            yield f"thresholds: epsilon is {threshold.epsilon:g}, and no threshold is below 0"
        for problem in _of_threshold(threshold, figures):
            yield f"thresholds: at epsilon {threshold.epsilon:g} {problem}"


def _factors(figures: Figures) -> Iterator[str]:
    """Whether λ is by hand a record does not tell, but agent and tensors have the same."""
    factors = {agent.model: _values(agent.rescale) for agent in figures.agents}
    for tensor in figures.tensors:
        for own in tensor.agents:
            known = factors[own.model]
            if own.weight != 0 and not any(_is_close(own.rescale, value) for value in known):
                yield (
                    f"agent {own.model}: rescale is {_told(known)}, but {own.rescale:g} in tensor "
                    f"{tensor.name}"
                )


def _of_agent(agent: AgentFigures, figures: Figures) -> Iterator[str]:
    yield from _too_many(agent.active, len(agent.overlap_degree), figures)
    for others, share in enumerate(agent.overlap_share):
        yield from _no_share(f"overlap_share.{others}", share)
    yield from _no_share("effective_rank", agent.effective_rank)
    yield from _no_factor(agent.rescale)
    if figures.exact:
        # Of a sample it is divided by a count that is rounded.
        yield from _no_share("rescale_effect", agent.rescale_effect)


def _of_pairs(pairs: Sequence[PairRecord], figures: Figures) -> Iterator[str]:
    wanted = [frozenset(pair) for pair in itertools.combinations(figures.names, 2)]
    found = Counter(frozenset((pair.first, pair.second)) for pair in pairs)
    for pair in pairs:
        for name in (pair.first, pair.second):
            if name not in figures.names:
                yield f"agent {name} is not among the agents of the record"
        if pair.first == pair.second:
            yield f"agent {pair.first} with itself"
    for names in wanted:
        if found[names] != 1:
            yield f"{' and '.join(sorted(names))} are there {found[names]} times"
    for pair in pairs:
        for problem in _of_pair(pair, figures):
            yield f"{pair.first} and {pair.second}: {problem}"


def _of_pair(pair: PairRecord, figures: Figures) -> Iterator[str]:
    active = [agent.active for agent in figures.agents if agent.model in (pair.first, pair.second)]
    most = min(active) if figures.exact else figures.parameters
    if not 0 <= pair.both <= most:
        yield f"both is {pair.both:,}, and at most {most:,} can be"
    yield from _no_share("jaccard", pair.jaccard)
    if figures.exact and pair.jaccard is not None:
        either = sum(active) - pair.both
        share = pair.both / either if either else 0.0
        if not _is_close(pair.jaccard, share):
            yield f"jaccard is {pair.jaccard:g}, but its counts give {share:g}"
    yield from _no_share("sign_conflicts", pair.sign_conflicts)
    for name, cosine in (("cosine", pair.cosine), ("gram_cosine", pair.gram_cosine)):
        if cosine is not None and abs(cosine) > 1 + SLACK:
            yield f"{name} is {cosine:g}, and a cosine lies between -1 and 1"


def _of_threshold(threshold: ThresholdRecord, figures: Figures) -> Iterator[str]:
    names = [agent.model for agent in threshold.agents]
    if names != figures.names:
        yield f"the agents are {', '.join(names)}, and not {', '.join(figures.names)}"
    for agent in threshold.agents:
        for problem in _of_threshold_agent(agent, figures):
            yield f"agent {agent.model}: {problem}"


def _of_threshold_agent(agent: ThresholdAgent, figures: Figures) -> Iterator[str]:
    for name in ("active", "shared", "unique"):
        if getattr(agent, name) < 0:
            yield f"{name} is {getattr(agent, name):,}"
    if agent.active != agent.shared + agent.unique:
        yield (
            f"active {agent.active:,} is not the sum of shared {agent.shared:,} and unique "
            f"{agent.unique:,}"
        )
    yield from _too_many(agent.active, len(figures.agents), figures)
    shares = {
        "density": (agent.density, figures.parameters),
        "unique_share": (agent.unique_share, agent.active),
    }
    counts = {"density": agent.active, "unique_share": agent.unique}
    for name, (given, whole) in shares.items():
        share = counts[name] / whole if whole else 0.0
        if given is not None and not _is_close(given, share):
            yield f"{name} is {given:g}, but its counts give {share:g}"
    yield from wrong_ratio(agent)
    yield from _no_factor(agent.rescale)


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)


def _too_many(active: int, rounded: int, figures: Figures) -> Iterator[str]:
    """``rounded`` counts were added up, which a sample rounds one by one."""
    if active > figures.parameters + (0 if figures.exact else rounded):
        yield f"{active:,} active parameters of {figures.parameters:,}"


def _no_share(name: str, value: float | None) -> Iterator[str]:
    if value is not None and not -SLACK <= value <= 1 + SLACK:
        yield f"{name} is {value:g}, and a share lies between 0 and 1"


def _no_factor(rescale: Setting) -> Iterator[str]:
    values = _values(rescale)
    if not values or min(values) < 0:
        yield f"rescale is {_told(rescale)}, and λ is a number from 0 on"


def _values(setting: Setting) -> tuple[float, ...]:
    return setting if isinstance(setting, tuple) else (setting,)


def _told(setting: Setting) -> str:
    return ", ".join(f"{value:g}" for value in _values(setting)) or "an empty list"
