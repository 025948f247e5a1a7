"""The figures of a record as plain HTML tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from mergekit_ram.record.schema import AgentRecord, OverlapRecord, PairRecord, ThresholdRecord
from mergekit_ram.show.page import wording


@dataclass(frozen=True)
class Column:
    """One figure of an agent; ``interval`` formats the bounds of its interval."""

    field: str
    title: str
    text: Callable[[AgentRecord], str]
    interval: Callable[[float], str] = wording.figure


ALWAYS = (
    Column("weight", "weight", lambda a: wording.listed(a.weight)),
    Column("active", "active", lambda a: wording.count(a.active), wording.count),
    Column("density", "density", lambda a: wording.share(a.density), wording.share),
    Column("shared", "shared", lambda a: wording.count(a.shared), wording.count),
    Column("unique", "unique", lambda a: wording.count(a.unique), wording.count),
)
RATIO = Column(
    "overlap_unique_ratio", "ρ", lambda a: wording.ratio(a.overlap_unique_ratio), wording.ratio
)
RESCALE = Column("rescale", "λ", lambda a: _rescale(a), wording.factor)
WHERE_KNOWN = (
    Column("retained", "retained", lambda a: wording.figure(a.retained)),
    Column("retained_ram", "by ram", lambda a: wording.figure(a.retained_ram)),
    Column("retained_ram_plus", "by ram_plus", lambda a: wording.figure(a.retained_ram_plus)),
    Column("retained_mean", "by the mean", lambda a: wording.figure(a.retained_mean)),
    Column("whole_rescale", "λ to keep 1", lambda a: wording.factor(a.whole_rescale)),
    Column("realised_rescale", "λ as stored", lambda a: wording.factor(a.realised_rescale)),
    Column(
        "rescale_effect", "changed by λ", lambda a: wording.share(a.rescale_effect), wording.share
    ),
)


def agents_table(record: OverlapRecord) -> str:
    """What each agent changed."""
    return _of_agents(record, (*ALWAYS, *_degrees(record), RATIO, RESCALE))


def kept_table(record: OverlapRecord) -> str:
    """What a merge keeps of each agent's update; empty where the record does not know."""
    known = tuple(
        column
        for column in WHERE_KNOWN
        if any(getattr(agent, column.field) is not None for agent in record.agents)
    )
    return _of_agents(record, known) if known else ""


def _of_agents(record: OverlapRecord, columns: Sequence[Column]) -> str:
    head = ["agent", *(column.title for column in columns)]
    rows = [
        [escape(agent.model), *(_cell(agent, column) for column in columns)]
        for agent in record.agents
    ]
    return table(head, rows)


def _degrees(record: OverlapRecord) -> list[Column]:
    most = max((len(agent.overlap_degree) for agent in record.agents), default=0)
    return [
        Column(
            f"overlap_degree[{others}]",
            wording.degree(others),
            lambda agent, others=others: _degree_share(agent, others),  # type: ignore[misc]
        )
        for others in range(most)
    ]


def _degree_share(agent: AgentRecord, others: int) -> str:
    count = agent.overlap_degree[others] if others < len(agent.overlap_degree) else 0
    return wording.share(count / agent.active if agent.active else None)


def _rescale(agent: AgentRecord) -> str:
    return wording.listed(agent.rescale, wording.factor) + (", clipped" if agent.clipped else "")


def _cell(agent: AgentRecord, column: Column) -> str:
    text = escape(column.text(agent))
    interval = wording.interval(agent.interval, column.field, column.interval)
    return f"{text} <small>{escape(interval)}</small>" if interval else text


def pairs_table(pairs: Sequence[PairRecord]) -> str:
    """A row per pair."""
    return table(
        ["agents", "both", "Jaccard", "cosine", "sign conflicts"],
        [
            [
                escape(f"{pair.first} and {pair.second}"),
                wording.count(pair.both),
                wording.figure(pair.jaccard),
                wording.figure(pair.cosine),
                wording.share(pair.sign_conflicts),
            ]
            for pair in pairs
        ],
    )


def thresholds_table(thresholds: Sequence[ThresholdRecord]) -> str:
    """A row per ε and agent."""
    return table(
        ["agent", "ε", "active", "density", "unique", "unique share", "ρ", "λ"],
        [
            [
                escape(agent.model),
                wording.figure(threshold.epsilon),
                wording.count(agent.active),
                wording.share(agent.density),
                wording.count(agent.unique),
                wording.share(agent.unique_share),
                wording.ratio(agent.overlap_unique_ratio),
                wording.factor(agent.rescale),
            ]
            for threshold in thresholds
            for agent in threshold.agents
        ],
    )


def table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls by itself where the screen is narrow; cells are HTML."""
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
