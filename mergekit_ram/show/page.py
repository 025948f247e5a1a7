"""A record as one HTML file, which is read in a browser without any network."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from mergekit_ram.errors import InputError
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import columns, tables
from mergekit_ram.show.panels import panels
from mergekit_ram.show.tables import Table


def write_page(record: OverlapRecord, path: str | Path) -> None:
    """Write the record's page.

    Raises:
        InputError: the file cannot be written.
    """
    page = render_page(record)
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Name a file in a folder that "
            "exists and has room."
        ) from None


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
        facts=_facts(record),
        missing=_missing(record),
        agent_tables=list(tables.agent_tables(record)),
        further_tables=[*tables.pair_tables(record), *tables.threshold_tables(record)],
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


def _facts(record: OverlapRecord) -> dict[str, str]:
    """What was merged or inspected, with which settings, by which programs."""
    settings, versions = record.settings, record.versions
    facts = {
        "base": record.base,
        "parameters": columns.count(record.parameters),
        "method": record.merge_method,
        "ε": columns.listed(record.epsilon),
        "r": columns.listed(settings.r),
        "α": columns.listed(settings.alpha),
        "scale": columns.listed(settings.scale),
        "overlap_power": columns.listed(settings.overlap_power),
        "ridge": columns.listed(settings.ridge),
        "out_dtype": record.out_dtype,
        "seconds": f"{record.seconds:,.1f}",
        "versions": f"mergekit-ram {versions.mergekit_ram}, mergekit {versions.mergekit}, "
        f"torch {versions.torch}",
    }
    names = tables.agent_names(record)
    short = {f"agent {name}": model for model, name in names.items() if name != model}
    return {name: text for name, text in (facts | short).items() if text}


def _missing(record: OverlapRecord) -> list[str]:
    """Figures that the record lacks."""
    known = {
        "overlaps of pairs": record.pairwise is not None,
        "other values of ε": record.thresholds is not None,
        "what is kept of each update": any(agent.retained is not None for agent in record.agents),
    }
    return [name for name, is_known in known.items() if not is_known]
