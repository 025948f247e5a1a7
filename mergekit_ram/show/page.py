"""A record as one HTML file, which is read in a browser without any network."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from mergekit_ram.errors import InputError, MissingExtraError
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import columns, tables
from mergekit_ram.show.panels import panels
from mergekit_ram.show.tables import Table


def write_page(record: OverlapRecord, path: str | Path) -> None:
    """Write the record's page.

    Raises:
        MissingExtraError: plotly is not installed.
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


def check_available() -> None:
    """Check before a long pass that a page can be made after it.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    _library()


def render_page(record: OverlapRecord) -> str:
    """The record's page.

    Raises:
        MissingExtraError: plotly is not installed.
    """
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
    """plotly.js, whole: the page must work offline."""
    try:
        source: str = importlib.import_module("plotly.offline").get_plotlyjs()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plotly":
            raise
        raise MissingExtraError(
            "a page needs plotly, which is not installed: pip install 'mergekit-ram[html]'"
        ) from None
    return source


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
    short = {name: model for model, name in tables.agent_names(record).items() if name != model}
    return {name: text for name, text in (facts | short).items() if text}


def _missing(record: OverlapRecord) -> list[str]:
    """Figures that the record lacks."""
    known = {
        "overlaps of pairs": record.pairwise is not None,
        "other values of ε": record.thresholds is not None,
        "what is kept of each update": any(agent.retained is not None for agent in record.agents),
    }
    return [name for name, is_known in known.items() if not is_known]
