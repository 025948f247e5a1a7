"""What must hold among the counts of a record, whoever wrote it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from mergekit_ram.record.columns import TensorAgent, TensorRecord

CLOSE = 1e-9
"""Of shares that are computed from counts; versions may round their last digit otherwise."""


class RatioSums(Protocol):
    """What ρ comes from, and ρ."""

    @property
    def shared(self) -> int: ...
    @property
    def unique(self) -> int: ...
    @property
    def overlap_unique_ratio(self) -> float | None: ...


class AgentSums(RatioSums, Protocol):
    """The counts of one agent in the whole model."""

    @property
    def model(self) -> str: ...
    @property
    def active(self) -> int: ...
    @property
    def density(self) -> float: ...
    @property
    def overlap_degree(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Counts:
    """The part of a record that its λ come from."""

    parameters: int
    agents: Sequence[AgentSums]
    tensors: Sequence[TensorRecord]
    exact: bool
    """False: estimates from a sample, each rounded by itself."""


def broken(counts: Counts) -> str | None:
    """The first thing that does not hold, with tensor, agent and value; None where all holds."""
    return next(_problems(counts), None)


def _problems(counts: Counts) -> Iterator[str]:
    yield from _doubled("agent", (agent.model for agent in counts.agents))
    yield from _doubled("tensor", (tensor.name for tensor in counts.tensors))
    known = {agent.model for agent in counts.agents}
    for tensor in counts.tensors:
        for problem in _in_tensor(tensor, known, counts.exact):
            yield f"tensor {tensor.name}: {problem}"
    parameters = sum(tensor.numel for tensor in counts.tensors)
    if counts.parameters != parameters:
        yield f"parameters is {counts.parameters:,}, but its tensors have {parameters:,}"
    degrees: dict[str, list[tuple[int, ...]]] = {}
    for tensor in counts.tensors:
        for found in tensor.agents:
            degrees.setdefault(found.model, []).append(found.overlap_degree)
    for agent in counts.agents:
        for problem in _in_model(agent, degrees.get(agent.model, []), counts):
            yield f"agent {agent.model}: {problem}"


def _doubled(what: str, names: Iterable[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{what} {name} is there {times} times"


def _in_tensor(tensor: TensorRecord, known: set[str], exact: bool) -> Iterator[str]:
    if tensor.numel < 0:
        yield f"numel is {tensor.numel}"
    if tensor.epsilon < 0:
        yield f"epsilon is {tensor.epsilon:g}"
    if not 0 <= tensor.change <= 1:
        yield f"change is {tensor.change:g}, and a share lies between 0 and 1"
    yield from _doubled("agent", (agent.model for agent in tensor.agents))
    for agent in tensor.agents:
        if agent.model not in known:
            yield f"agent {agent.model} is not among the agents of the record"
        for problem in _in_agent(agent, tensor.numel, exact):
            yield f"agent {agent.model}: {problem}"
    if exact:
        yield from _among_agents(tensor)


def _in_agent(agent: TensorAgent, numel: int, exact: bool) -> Iterator[str]:
    for count in agent.overlap_degree:
        if count < 0:
            yield f"a count of {count:,}"
    slack = 0 if exact else len(agent.overlap_degree)
    if agent.active > numel + slack:
        yield f"{agent.active:,} active parameters of {numel:,}"
    sums = sum(agent.overlap_degree), sum(agent.overlap_degree[1:])
    if (agent.active, agent.shared) != sums or agent.unique != sums[0] - sums[1]:
        yield (
            f"active {agent.active:,}, shared {agent.shared:,} and unique {agent.unique:,} are "
            f"not the sums of overlap_degree {list(agent.overlap_degree)}"
        )
    if agent.weight == 0 and agent.active:
        yield f"its weight is 0, and {agent.active:,} parameters are active"


def _among_agents(tensor: TensorRecord) -> Iterator[str]:
    """A parameter that k + 1 agents changed is counted by each of them."""
    taking_part = [agent for agent in tensor.agents if agent.weight != 0]
    for agent in tensor.agents:
        if len(agent.overlap_degree) != len(taking_part):
            yield (
                f"agent {agent.model}: overlap_degree has {len(agent.overlap_degree)} entries, "
                f"and {len(taking_part)} agents take part"
            )
    changed = 0
    for others, column in enumerate(zip(*(a.overlap_degree for a in taking_part), strict=False)):
        total = sum(column)
        if total % (others + 1):
            yield (
                f"{total:,} times a parameter that {others} others changed too, which is no "
                f"multiple of {others + 1}"
            )
        for agent, count in zip(taking_part, column, strict=True):
            if count > total // (others + 1):
                yield (
                    f"agent {agent.model}: {count:,} parameters that {others} others changed "
                    f"too, and all agents together have {total // (others + 1):,} of them"
                )
        changed += total // (others + 1)
    if changed > tensor.numel:
        yield f"{changed:,} changed parameters of {tensor.numel:,}"
    share = changed / tensor.numel if tensor.numel else 0.0
    if not math.isclose(tensor.change, share, rel_tol=CLOSE, abs_tol=CLOSE):
        yield f"change is {tensor.change:g}, but {changed:,} of {tensor.numel:,} were changed"


def _in_model(agent: AgentSums, rows: Sequence[tuple[int, ...]], counts: Counts) -> Iterator[str]:
    """``rows`` are its overlap degrees by tensor."""
    named = {"active": agent.active, "shared": agent.shared, "unique": agent.unique}
    for name, count in named.items():
        if count < 0:
            yield f"{name} is {count:,}"
    if not rows and counts.tensors:
        yield "it is in no tensor"
    if not counts.exact:
        return
    degree = tuple(map(sum, zip_longest(*rows, fillvalue=0)))
    if any(a != b for a, b in zip_longest(agent.overlap_degree, degree, fillvalue=0)):
        yield (
            f"overlap_degree is {list(agent.overlap_degree)}, but the tensors' sum is "
            f"{list(degree)}"
        )
    active, shared = sum(degree), sum(degree[1:])
    if tuple(named.values()) != (active, shared, active - shared):
        yield (
            f"active {agent.active:,}, shared {agent.shared:,} and unique {agent.unique:,}, but "
            f"the tensors have {active:,}, {shared:,} and {active - shared:,}"
        )
    density = active / counts.parameters if counts.parameters else 0.0
    if not math.isclose(agent.density, density, rel_tol=CLOSE, abs_tol=CLOSE):
        yield f"density is {agent.density:g}, but its counts give {density:g}"
    yield from wrong_ratio(agent)


def wrong_ratio(agent: RatioSums) -> Iterator[str]:
    """Says if ρ is not that of the counts."""
    given = agent.overlap_unique_ratio
    ratio = agent.shared / agent.unique if agent.unique else (None if agent.shared else 0.0)
    if (given is None) != (ratio is None) or (
        given is not None
        and ratio is not None
        and not math.isclose(given, ratio, rel_tol=CLOSE, abs_tol=CLOSE)
    ):
        yield f"overlap_unique_ratio is {given}, but its counts give {ratio}"
