"""The figures of a record's page; importing this needs plotly."""

from __future__ import annotations

from dataclasses import dataclass

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.page.figures import (
    agents,
    directions,
    kept,
    layers,
    look,
    pairs,
    rescale,
    thresholds,
)

ESTIMATE = (
    " All of it is an estimate from a sample: thin lines, and the text at the pointer, give the "
    "95 % intervals where the record has them."
)


@dataclass(frozen=True)
class Section:
    """Panels under one heading."""

    title: str
    panels: tuple[look.Panel, ...]


def sections(record: OverlapRecord) -> tuple[Section, ...]:
    """All that the record has figures for, in the order of the page."""
    pairwise = (pairs.matrix(record, record.pairwise),) if record.pairwise else ()
    shared = directions.panels(record)
    sweep = thresholds.panels(record, record.thresholds) if record.thresholds else ()
    keeping = (kept.retained(record), kept.realised(record))
    found = (
        Section("What each agent changed", _changes(record)),
        Section("Where two agents meet", (*pairwise, *shared)),
        Section("Where in the model", (layers.layer_map(record),)),
        Section("Does ε matter?", sweep),
        Section("Do r and α matter?", rescale.panels(record)),
        Section("What a merge keeps", tuple(panel for panel in keeping if panel is not None)),
    )
    return tuple(section for section in found if section.panels)


def _changes(record: OverlapRecord) -> tuple[look.Panel, ...]:
    """Of one agent alone everything is unique."""
    if len(record.agents) < 2:
        return (agents.density(record),)
    return agents.density(record), agents.overlap_degree(record)


def caption(record: OverlapRecord, panel: look.Panel) -> str:
    """The panel's caption; of a sample it says so."""
    return panel.caption + (ESTIMATE if record.sample is not None else "")
