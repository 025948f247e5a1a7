"""The charts of a record's page: bars and matrices of the agents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from mergekit_ram.record.schema import AgentRecord, OverlapRecord, PairRecord
from mergekit_ram.show import charts, columns
from mergekit_ram.show.charts import Panel, bar, plain
from mergekit_ram.show.columns import Bounds, Column
from mergekit_ram.show.curves import over_epsilon, over_settings
from mergekit_ram.show.layer_map import layer_map
from mergekit_ram.show.tables import (
    agent_names,
    degree_column,
    degrees,
    is_known,
    kept_columns,
    values,
)

CELL_WIDTH = 82
NUMBERS_WIDTH = 40


def panels(record: OverlapRecord) -> dict[str, list[Panel]]:
    """All that the record has figures for, by the heading of their section."""
    found = {
        "What each agent changed": [_density(record), *_overlap_degree(record)],
        "Where two agents meet": [*_pairs(record), *_directions(record)],
        "Where in the model": [layer_map(record)],
        "Does ε matter?": [*over_epsilon(record)],
        "Do r and α matter?": [*over_settings(record)],
        "What a merge keeps": [*_retained(record), *_realised(record)],
    }
    return {title: section for title, section in found.items() if section}


def _density(record: OverlapRecord) -> Panel:
    styles = charts.styles_of(record)
    colours, patterns = [s.colour for s in styles], [s.pattern for s in styles]
    plot = charts.bars([bar(record, columns.DENSITY, colours, patterns)], "active / parameters")
    axis = plot["layout"]["xaxis"]
    axis |= charts.share_ticks(axis["range"][1])
    return Panel("density", plot)


def _overlap_degree(record: OverlapRecord) -> Iterator[Panel]:
    # Of one agent alone everything is unique.
    if len(record.agents) > 1:
        colours = charts.shades(charts.DEGREES, degrees(record))
        traces = [bar(record, degree_column(k), colour) for k, colour in enumerate(colours)]
        yield Panel("overlap-degree", charts.stacked_bars(traces, "share of its active parameters"))


def _pairs(record: OverlapRecord) -> Iterator[Panel]:
    pairs = record.pairwise or ()
    both, jaccard, *_ = columns.PAIRS
    cells = {
        frozenset(_both(pair)): (
            pair.jaccard,
            f"{jaccard.cell(pair).text}<br>{both.cell(pair).text}",
            _lines(*_both(pair), *(column.words(pair) for column in columns.PAIRS)),
        )
        for pair in pairs
    }
    if cells:
        top = max((pair.jaccard for pair in pairs if pair.jaccard), default=1.0)
        yield _square(record, "pairs", cells, top)


def _directions(record: OverlapRecord) -> Iterator[Panel]:
    pairs = [pair for pair in record.pairwise or () if pair.gram_cosine is not None]
    cells: charts.Cells = {
        frozenset(_both(pair)): (
            pair.gram_cosine,
            columns.GRAM_COSINE.cell(pair).text,
            _lines(*_both(pair), columns.GRAM_COSINE.words(pair)),
        )
        for pair in pairs
    }
    if cells:
        for agent in record.agents:
            rank = columns.RANK.cell(agent).text
            words = _lines(agent.model, columns.RANK.words(agent))
            cells[frozenset((agent.model,))] = (None, f"rank<br>{rank}", words)
        yield _square(record, "directions", cells, 1.0)


def _both(pair: PairRecord) -> tuple[str, str]:
    return pair.first, pair.second


def _lines(*texts: str) -> str:
    return "<br>".join(map(plain, texts))


def _square(record: OverlapRecord, name: str, cells: charts.Cells, top: float) -> Panel:
    """A matrix of the agents, which are numbered in it."""
    names = agent_names(record)
    numbered = (f"{number} = {short}" for number, short in enumerate(names.values(), start=1))
    width = NUMBERS_WIDTH + CELL_WIDTH * len(names)
    plot = charts.matrix(list(names), cells, top)
    return Panel(name, plot, "Here " + ", ".join(numbered) + ".", min_width=width)


def _retained(record: OverlapRecord) -> Iterator[Panel]:
    """Bars per agent and way to merge; nothing where the record has no energies."""
    shown = kept_columns(record)
    colours = charts.shades(charts.METHODS, len(columns.KEPT))[::-1]
    traces = [
        bar(record, column, colour, pattern)
        for column, colour, pattern in zip(columns.KEPT, colours, charts.PATTERNS, strict=False)
        if column in shown
    ]
    if traces:
        yield Panel("retained", charts.bars(traces, "kept", whole=1.0))


def _realised(record: OverlapRecord) -> Iterator[Panel]:
    """λ as meant and as the output dtype stores it; nothing where it was not stored, or λ is 1."""
    stored = columns.figure("realised_rescale", "as stored", columns.factor, "")
    meant = replace(
        stored, title="as meant", value=partial(mean_rescale, record), bounds=columns.RESCALE.bounds
    )
    if is_known(record, stored) and any(value != 1 for value in values(record, meant)):
        first, second = charts.shades(charts.FACTORS, 2)
        traces = [bar(record, _less_one(meant), first), bar(record, _less_one(stored), second, "/")]
        yield Panel("realised", charts.bars(traces, "λ − 1"))


def _less_one(column: Column) -> Column:
    """A column of λ − 1, which is what λ adds."""

    def value(agent: AgentRecord) -> float | None:
        found = column.value(agent)
        return None if found is None else found - 1.0

    def bounds(agent: AgentRecord) -> Bounds:
        found = column.bounds(agent)
        return found and (found[0] - 1.0, found[1] - 1.0)

    return replace(column, value=value, bounds=bounds)


def mean_rescale(record: OverlapRecord, agent: AgentRecord) -> float:
    """The agent's λ; where it differs by tensor, its mean over the unique parameters."""
    if not isinstance(agent.rescale, tuple):
        return agent.rescale
    every = [counts for tensor in record.tensors for counts in tensor.agents]
    own = [counts for counts in every if counts.model == agent.model]
    unique = sum(counts.unique for counts in own)
    total = sum(counts.unique * counts.rescale for counts in own)
    return total / unique if unique else max(agent.rescale)
