"""The tables of a record, as data for terminal, model card and page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from mergekit_ram.names import labels
from mergekit_ram.record.schema import (
    AgentRecord,
    LayerRecord,
    OverlapRecord,
    TensorRecord,
    ThresholdAgent,
)
from mergekit_ram.show import columns
from mergekit_ram.show.columns import Cell, Column

Part = TypeVar("Part", TensorRecord, LayerRecord)

TOP = 5
"""Tensors and layers that are listed."""

MOST_PAIRS = 10

LARGE_SHARE = 0.01
LARGE_AS_AVERAGE = 0.5
"""Of all parameters, and of an average tensor: in large models hardly any tensor has 1 %."""


@dataclass(frozen=True)
class Table:
    """A heading, and a row for each part of a record with a cell for each column."""

    heading: str
    parts: Sequence[Any]
    columns: Sequence[Column]
    most: int | None = None
    """Rows that a terminal shows; of all where null."""

    @property
    def rows(self) -> list[list[Cell]]:
        """The cells, row by row."""
        return [[column.cell(part) for column in self.columns] for part in self.parts]


class AtThreshold(NamedTuple):
    """An agent's counts at one ε."""

    epsilon: float
    agent: ThresholdAgent


def tables(record: OverlapRecord) -> Iterator[Table]:
    """All that the record has figures for, in the order of reading."""
    yield from agent_tables(record)
    yield from pair_tables(record)
    yield _top(record, "Tensors with the most change", columns.TENSOR, record.tensors)
    yield _top(record, "Layers with the most change", columns.LAYER, record.layers)
    yield from threshold_tables(record)


def agent_names(record: OverlapRecord) -> dict[str, str]:
    """The short name of each agent, by its whole one."""
    models = [agent.model for agent in record.agents]
    return dict(zip(models, labels(models), strict=True))


def facts(record: OverlapRecord) -> dict[str, str]:
    """What was merged or inspected, with which settings, by which programs."""
    versions = record.versions
    return {
        "method": record.merge_method,
        "base": record.base,
        **{f"agent {name}": model for model, name in agent_names(record).items()},
        "parameters": columns.count(record.parameters),
        **columns.settings_of(record),
        "out_dtype": record.out_dtype,
        "seconds": f"{record.seconds:,.1f}",
        "versions": f"mergekit-ram {versions.mergekit_ram}, mergekit {versions.mergekit}, "
        f"torch {versions.torch}",
    }


def agent_tables(record: OverlapRecord) -> Iterator[Table]:
    """A row per agent: what it changed, with how many others, and what the merge keeps."""
    names = agent_names(record)
    yield agent_table(record, names)
    by_degree = map(degree_column, range(degrees(record)))
    heading = "How many others changed the same parameters"
    yield _table(record, heading, record.agents, _agent(names), *by_degree)
    rounded = columns.figure(
        "realised_rescale",
        f"λ in {record.out_dtype}",
        columns.factor,
        "what is left of λ when the output is rounded",
    )
    figures = (*kept_columns(record), columns.WHOLE_RESCALE, rounded, columns.RESCALE_EFFECT)
    if found := known(figures, record.agents):
        heading = "What a merge keeps of its update (1 = whole; no forecast of accuracy)"
        yield _table(record, heading, record.agents, _agent(names), *found)


def agent_table(record: OverlapRecord, names: Mapping[str, str]) -> Table:
    """Density, counts, ρ_t and λ_t per agent.

    Args:
        record: of a merge or an inspection.
        names: of the agents, by their models.
    """
    has_weights = any(agent.weight != 1 for agent in record.agents)
    is_weighed = record.settings.ridge is None  # else the method has no λ
    return _table(
        record,
        "What each agent changed",
        record.agents,
        _agent(names),
        *([columns.WEIGHT] if has_weights else []),
        columns.DENSITY,
        columns.UNIQUE,
        columns.SHARED,
        columns.RATIO,
        *([columns.RESCALE, columns.CLIPPED] if is_weighed else []),
        *known([columns.RANK], record.agents),
    )


def degrees(record: OverlapRecord) -> int:
    """The numbers of other agents that changed a parameter, from 0."""
    return max((len(agent.overlap_degree) for agent in record.agents), default=0)


def degree_column(others: int) -> Column:
    """The share of an agent's active parameters that so many other agents changed too."""
    agents = f"{others or 'no'} other agent{'s' if others != 1 else ''}"
    return Column(
        columns.degree(others),
        f"the share that {agents} changed too",
        partial(_degree_share, others=others),
        columns.share,
        partial(columns.bounds_of, field=f"overlap_share.{others}"),
    )


def _degree_share(agent: AgentRecord, others: int) -> float | None:
    if others >= len(agent.overlap_degree) or not agent.active:
        return None
    return agent.overlap_degree[others] / agent.active


def kept_columns(record: OverlapRecord) -> list[Column]:
    """What each way to merge keeps, and the configured one where it is none of the others."""
    values = {
        column: [column.value(agent) for agent in record.agents]
        for column in known(columns.KEPT, record.agents)
    }
    configured = values.pop(columns.CONFIGURED, None)
    is_own = configured is not None and configured not in values.values()
    return [*values, *([columns.CONFIGURED] if is_own else [])]


def known(found: Sequence[Column], parts: Sequence[Any]) -> list[Column]:
    """The columns that have a value for any of the parts."""
    return [column for column in found if any(column.value(part) is not None for part in parts)]


def pair_tables(record: OverlapRecord) -> Iterator[Table]:
    """A row per pair of agents, the largest overlap first; nothing where there is none."""
    if not record.pairwise:
        return
    names = agent_names(record)
    first = columns.name("agent", columns.AGENT, lambda pair: names[pair.first])
    second = columns.name("and", "the other agent", lambda pair: names[pair.second])
    ranked = sorted(record.pairwise, key=lambda pair: -(pair.jaccard or 0.0))
    figures = known([*columns.PAIRS, columns.GRAM_COSINE], ranked)
    found = _table(record, "Where two agents meet", ranked, first, second, *figures)
    yield replace(found, most=MOST_PAIRS)


def threshold_tables(record: OverlapRecord) -> Iterator[Table]:
    """A row per agent and ε; nothing where the record has one ε alone."""
    if record.thresholds is None:
        return
    names = agent_names(record)
    rows = [
        AtThreshold(threshold.epsilon, threshold.agents[number])
        for number in range(len(record.agents))
        for threshold in record.thresholds
    ]
    name = columns.name("agent", columns.AGENT, lambda at: names[at.agent.model])
    figures = [column.of(lambda at: at.agent) for column in columns.AT_THRESHOLDS]
    yield _table(record, "By threshold", rows, name, columns.THRESHOLD, *figures)


def _top(record: OverlapRecord, heading: str, name: Column, parts: Sequence[Part]) -> Table:
    """The parts with the most change that are above 1 % of the model, or not far below average.

    In a bias, which is nearly nothing of a model, 80 % are quickly changed.
    """
    whole = sum(part.numel for part in parts)
    least = min(LARGE_SHARE * whole, LARGE_AS_AVERAGE * whole / max(len(parts), 1))
    large = [part for part in parts if part.numel > least]
    ranked = sorted(large, key=lambda part: (-part.change, part.name))[:TOP]
    return _table(record, heading, ranked, name, columns.CHANGE)


def _agent(names: Mapping[str, str]) -> Column:
    return columns.name("agent", columns.AGENT, lambda agent: names[agent.model])


def _table(record: OverlapRecord, heading: str, parts: Sequence[Any], *shown: Column) -> Table:
    return Table(heading + (" (estimate)" if record.sample else ""), parts, shown)
