"""A record as one HTML file, which is read in a browser without any network."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from mergekit_ram.errors import working
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import charts, columns
from mergekit_ram.show.charts import Panel, bar, plain
from mergekit_ram.show.columns import Column
from mergekit_ram.show.curves import over_epsilon, over_settings
from mergekit_ram.show.layer_map import layer_map
from mergekit_ram.show.tables import (
    Table,
    agent_names,
    agent_tables,
    degree_column,
    degrees,
    facts,
    kept_columns,
    known,
    pair_tables,
    threshold_tables,
)

CELL_WIDTH = 82
NUMBERS_WIDTH = 40


def write_page(record: OverlapRecord, path: str | Path) -> None:
    """Write the record's page.

    Raises:
        InputError: the file cannot be written.
    """
    page = render_page(record)
    with working(f"writing {path}"):
        Path(path).write_text(page, encoding="utf-8")


def render_page(record: OverlapRecord) -> str:
    """The record's page."""
    templates = Environment(
        loader=PackageLoader("mergekit_ram", "show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html.j2").render(
        record=record,
        facts=facts(record),
        agent_tables=list(agent_tables(record)),
        further_tables=[*pair_tables(record), *threshold_tables(record)],
        sections=panels(record),
        library=_library(),
        meanings=_meanings,
        columns=columns,
    )


def _meanings(found: Sequence[Table]) -> dict[str, str]:
    """The meanings of all columns of some tables, by title."""
    return {column.title: column.meaning for table in found for column in table.columns}


def _library() -> str:
    """plotly.js, as far as the charts need it, which the page holds: it must work offline."""
    packed = files("mergekit_ram.show").joinpath("plotly-cartesian.min.js.gz").read_bytes()
    return gzip.decompress(packed).decode()


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
    axis = charts.shares("active / parameters", max(agent.density for agent in record.agents))
    return Panel("density", charts.bars([bar(record, columns.DENSITY, colours, patterns)], axis))


def _overlap_degree(record: OverlapRecord) -> Iterator[Panel]:
    # Of one agent alone everything is unique.
    if len(record.agents) > 1:
        colours = charts.shades(charts.DEGREES, degrees(record))
        traces = [bar(record, degree_column(k), colour) for k, colour in enumerate(colours)]
        yield Panel("overlap-degree", charts.stacked_bars(traces, "share of its active parameters"))


def _pairs(record: OverlapRecord) -> Iterator[Panel]:
    both, jaccard, *_ = columns.PAIRS
    top = max((pair.jaccard or 0.0 for pair in record.pairwise or ()), default=0.0)
    yield from _matrix(record, "pairs", [jaccard, both], columns.PAIRS, top or 1.0)


def _directions(record: OverlapRecord) -> Iterator[Panel]:
    grams = [columns.GRAM_COSINE]
    if known(grams, record.pairwise or ()):
        yield from _matrix(record, "directions", grams, grams, 1.0)


def _matrix(
    record: OverlapRecord, name: str, shown: Sequence[Column], told: Sequence[Column], top: float
) -> Iterator[Panel]:
    """A matrix of the agents, which are numbered in it; nothing where pairs are unknown.

    Args:
        record: of the agents.
        name: of the panel.
        shown: in a cell, the first one as its colour too.
        told: at the pointer.
        top: the value of the strongest colour.
    """
    cells = {
        frozenset((pair.first, pair.second)): (
            shown[0].value(pair),
            "<br>".join(column.cell(pair).text for column in shown),
            "<br>".join(
                map(plain, (pair.first, pair.second, *(column.words(pair) for column in told)))
            ),
        )
        for pair in record.pairwise or ()
    }
    if cells:
        names = agent_names(record)
        numbered = (f"{number} = {short}" for number, short in enumerate(names.values(), start=1))
        width = NUMBERS_WIDTH + CELL_WIDTH * len(names)
        plot = charts.matrix(list(names), cells, top)
        yield Panel(name, plot, "Here " + ", ".join(numbered) + ".", min_width=width)


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
        yield Panel("retained", charts.bars(traces, {"title": {"text": "kept"}}, whole=1.0))


def _realised(record: OverlapRecord) -> Iterator[Panel]:
    """λ as meant and as the output dtype stores it; nothing where it was not stored, or λ is 1."""
    stored = columns.figure("realised_rescale", "as stored", columns.factor, "")
    meant = replace(columns.RESCALE, title="as meant")
    if known([stored], record.agents) and any(agent.rescale != 1 for agent in record.agents):
        first, second = charts.shades(charts.FACTORS, 2)
        traces = [
            bar(record, meant, first, origin=1.0),
            bar(record, stored, second, "/", origin=1.0),
        ]
        yield Panel("realised", charts.bars(traces, {"title": {"text": "λ"}}))
