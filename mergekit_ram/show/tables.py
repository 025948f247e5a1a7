"""A record's tables, described once for all places that show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mergekit_ram.names import labels
from mergekit_ram.record.schema import (
    AgentRecord,
    LayerRecord,
    OverlapRecord,
    TensorRecord,
)
from mergekit_ram.show import wording
from mergekit_ram.show.columns import (
    AGENT,
    BOTH,
    CHANGE,
    CLIPPED,
    CONFIGURED,
    CONFLICTS,
    COSINE,
    DENSITY,
    EFFECTIVE_RANK,
    GRAM_COSINE,
    JACCARD,
    KEPT,
    LAYER,
    OTHER,
    RATIO,
    RESCALE,
    SHARED,
    TENSOR,
    UNIQUE,
    UNIQUE_SHARE,
    WEIGHT,
    WHOLE_RESCALE,
    Cell,
    Column,
    Figure,
    Table,
    figure_cell,
)

Part = TypeVar("Part", TensorRecord, LayerRecord)

TOP = 5
"""Tensors and layers that are listed."""

LARGE_SHARE = 0.01
LARGE_AS_AVERAGE = 0.5
"""Of all parameters, and of an average tensor: of large models hardly one tensor has 1 %."""


def tables(record: OverlapRecord) -> Iterator[Table]:
    """All that the record has figures for, in the order of reading."""
    yield agent_table(record)
    yield degree_table(record)
    yield from kept_tables(record)
    yield from pair_tables(record)
    yield from direction_tables(record)
    yield _top(record, "Tensors with the most change", TENSOR, _large(record.tensors))
    yield _top(record, "Layers with the most change", LAYER, _large(record.layers))
    yield from threshold_tables(record)


def agent_table(record: OverlapRecord, *, whole_names: bool = False) -> Table:
    """Density, counts, ρ_t and λ_t per agent.

    Args:
        record: of a merge or an inspection.
        whole_names: for documents that are read far from the folders of the models.
    """
    weight = [WEIGHT] if any(agent.weight != 1 for agent in record.agents) else []
    figures = (*weight, DENSITY, UNIQUE, SHARED, RATIO, RESCALE)
    names = {agent.model: agent.model for agent in record.agents} if whole_names else None
    table = _of_agents(record, "What each agent changed", figures, names)
    rows = tuple(
        (*row, Cell("yes" if agent.clipped else "no"))
        for row, agent in zip(table.rows, record.agents, strict=True)
    )
    return Table(table.heading, (*table.columns, CLIPPED), rows)


def degree_table(record: OverlapRecord) -> Table:
    """Per agent, the shares of its active parameters by the number of other agents."""
    degrees = range(max((len(agent.overlap_degree) for agent in record.agents), default=0))
    columns = [
        Column(
            wording.degree(others),
            f"the share that {others or 'no'} other agent{'s' if others != 1 else ''} changed too",
        )
        for others in degrees
    ]
    names = agent_names(record)
    rows = [
        [Cell(names[agent.model]), *(_degree_cell(agent, others) for others in degrees)]
        for agent in record.agents
    ]
    return _table(record, "Of its changed parameters, changed by", [AGENT, *columns], rows)


def _degree_cell(agent: AgentRecord, others: int) -> Cell:
    if others >= len(agent.overlap_degree) or not agent.active:
        return Cell(wording.NOTHING)
    bounds = (agent.interval or {}).get(f"overlap_share.{others}")
    return figure_cell(
        wording.share(agent.overlap_degree[others] / agent.active), bounds, wording.share
    )


def kept_tables(record: OverlapRecord) -> Iterator[Table]:
    """What a merge keeps of each update; nothing where the record does not know."""
    stored = (
        Figure(
            "realised_rescale",
            f"λ in {record.out_dtype}",
            wording.factor,
            "what is left of λ when the output is rounded",
        ),
        Figure(
            "rescale_effect",
            "unique values it changes",
            wording.share,
            "of its unique parameters, the share whose stored value λ changes at all",
        ),
    )
    configured = [CONFIGURED] if is_own_way(record) else []
    figures = [*KEPT, *configured, WHOLE_RESCALE, *stored]
    known = [
        figure
        for figure in figures
        if any(getattr(agent, figure.field) is not None for agent in record.agents)
    ]
    if known:
        yield _of_agents(record, "What the merge keeps of its update (1 = whole)", known)


def is_own_way(record: OverlapRecord) -> bool:
    """Whether what is configured keeps another share than each of the named ways."""
    agents = record.agents
    values = [agent.retained for agent in agents]
    others = [[getattr(agent, figure.field) for agent in agents] for figure in KEPT]
    return any(value is not None for value in values) and values not in others


def pair_tables(record: OverlapRecord) -> Iterator[Table]:
    """A row per pair of agents; nothing where the record has none."""
    if not record.pairwise:
        return
    names = agent_names(record)
    figures = (BOTH, JACCARD, COSINE, CONFLICTS)
    columns = [AGENT, OTHER, *(figure.column() for figure in figures)]
    rows = [
        [
            Cell(names[pair.first]),
            Cell(names[pair.second]),
            *(figure.cell(pair) for figure in figures),
        ]
        for pair in record.pairwise
    ]
    yield _table(record, "Where two agents meet", columns, rows)


def direction_tables(record: OverlapRecord) -> Iterator[Table]:
    """A matrix of the agents: how they share directions, and how many each uses."""
    if all(agent.effective_rank is None for agent in record.agents):
        return
    names = agent_names(record)
    cosines = {
        frozenset((pair.first, pair.second)): GRAM_COSINE.cell(pair)
        for pair in record.pairwise or ()
    }
    columns = [
        AGENT,
        EFFECTIVE_RANK.column(),
        *(
            Column(f"with {names[agent.model]}", f"cosine of Grams: {GRAM_COSINE.meaning}")
            for agent in record.agents
        ),
    ]
    rows = [
        [
            Cell(names[agent.model]),
            EFFECTIVE_RANK.cell(agent),
            *(
                cosines.get(frozenset((agent.model, other.model)), Cell(wording.NOTHING))
                for other in record.agents
            ),
        ]
        for agent in record.agents
    ]
    yield _table(record, "Which directions of the input they use", columns, rows)


def threshold_tables(record: OverlapRecord) -> Iterator[Table]:
    """A row per agent and ε; nothing where the record has one ε alone."""
    if record.thresholds is None:
        return
    names = agent_names(record)
    figures = (DENSITY, UNIQUE_SHARE, RATIO, RESCALE)
    columns = [
        AGENT,
        Column("ε", "the threshold of activity"),
        *(figure.column() for figure in figures),
    ]
    rows = [
        [
            Cell(names[agent.model]),
            Cell(wording.setting(threshold.epsilon)),
            *(figure.cell(agent) for figure in figures),
        ]
        for number in range(len(record.agents))
        for threshold in record.thresholds
        for agent in [threshold.agents[number]]
    ]
    yield _table(record, "By threshold", columns, rows)


def _large(parts: Sequence[Part]) -> list[Part]:
    """Parts that count: above 1 % of the model, or not far below the average one.

    Of a bias that is nearly nothing of the model 80 % are quickly changed.
    """
    whole = sum(part.numel for part in parts)
    least = min(LARGE_SHARE * whole, LARGE_AS_AVERAGE * whole / max(len(parts), 1))
    return [part for part in parts if part.numel > least]


def _top(record: OverlapRecord, heading: str, name: Column, parts: Sequence[Any]) -> Table:
    ranked = sorted(parts, key=lambda part: (-part.change, part.name))[:TOP]
    rows = [[Cell(part.name), CHANGE.cell(part)] for part in ranked]
    return _table(record, heading, [name, CHANGE.column()], rows)


def agent_names(record: OverlapRecord) -> dict[str, str]:
    """The short name of each agent, by its whole one."""
    models = [agent.model for agent in record.agents]
    return dict(zip(models, labels(models), strict=True))


def _of_agents(
    record: OverlapRecord,
    heading: str,
    figures: Sequence[Figure],
    names: Mapping[str, str] | None = None,
) -> Table:
    names = names or agent_names(record)
    rows = [
        [Cell(names[agent.model]), *(figure.cell(agent) for figure in figures)]
        for agent in record.agents
    ]
    return _table(record, heading, [AGENT, *(figure.column() for figure in figures)], rows)


def _table(
    record: OverlapRecord, heading: str, columns: Iterable[Column], rows: Iterable[Sequence[Cell]]
) -> Table:
    kind = " (estimate)" if record.sample is not None else ""
    return Table(heading + kind, tuple(columns), tuple(map(tuple, rows)))
