"""A record as one HTML file, which is read in a browser without any network."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from mergekit_ram.errors import InputError, MissingExtraError
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import tables, wording
from mergekit_ram.show.columns import Table
from mergekit_ram.show.page import palette
from mergekit_ram.show.page.markup import as_html, meanings

# No address is allowed to be loaded from, so that nothing leaves the reader's machine.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)

MISSING = {
    "pairwise": "overlaps of pairs",
    "thresholds": "other values of ε",
    "energies": "what is kept of each update",
}


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
    """See before a long pass that a page can be made after it.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    _figures()


def render_page(record: OverlapRecord) -> str:
    """The record's page.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    figures = _figures()
    title = escape(_title(record))
    sections = "\n".join(_section(figures, record, section) for section in figures.sections(record))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{palette.style()}{_resource("page.css")}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{_facts(record)}
{_findings(record)}
<section>
<h2>The agents in numbers</h2>
{_tables(_agents(record))}
</section>
{sections}
{_further_tables(record)}
</main>
<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>
<script type="application/json" id="nights">{_nights(record)}</script>
<script>{_library()}</script>
<script>
{_resource("page.js")}</script>
</body>
</html>
"""


def _figures() -> Any:
    """The module that draws, imported with the first page: plotly is an extra."""
    try:
        return importlib.import_module("mergekit_ram.show.page.figures")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plotly":
            raise
        raise MissingExtraError(
            "a page needs plotly, which is not installed: pip install 'mergekit-ram[html]'"
        ) from None


def _library() -> str:
    """plotly.js, whole: the page must work offline."""
    source: str = importlib.import_module("plotly.offline").get_plotlyjs()
    return source


def _resource(name: str) -> str:
    return files("mergekit_ram.show.page").joinpath(name).read_text(encoding="utf-8")


def _nights(record: OverlapRecord) -> str:
    """What the page exchanges the figures' colours for where its surroundings are dark."""
    degrees = max((len(agent.overlap_degree) for agent in record.agents), default=0)
    return json.dumps(palette.nights(degrees))


def _title(record: OverlapRecord) -> str:
    what = "a merge by" if record.kind == "merge" else "an inspection for"
    estimate = ", an estimate" if record.sample is not None else ""
    return f"What the agents changed: {what} {record.merge_method}{estimate}"


def _facts(record: OverlapRecord) -> str:
    settings, versions = record.settings, record.versions
    facts = {
        "base": record.base,
        "parameters": wording.count(record.parameters),
        "method": record.merge_method,
        "ε": wording.listed(record.epsilon),
        "r": wording.listed(settings.r),
        "α": wording.listed(settings.alpha),
        "scale": wording.listed(settings.scale),
        "overlap_power": wording.listed(settings.overlap_power),
        "ridge": wording.listed(settings.ridge),
        "out_dtype": record.out_dtype,
        "seconds": f"{record.seconds:,.1f}",
        "versions": f"mergekit-ram {versions.mergekit_ram}, mergekit {versions.mergekit}, "
        f"torch {versions.torch}",
    }
    items = "\n".join(
        f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>"
        for name, text in facts.items()
        if text != wording.NOTHING
    )
    return f"{_sample(record)}<dl>\n{items}\n</dl>"


def _sample(record: OverlapRecord) -> str:
    sample = record.sample
    if sample is None:
        return ""
    return (
        f'<p class="estimate"><strong>Every figure is an estimate</strong> from '
        f"{wording.share(sample.fraction)} of the rows of every tensor (seed {sample.seed}): "
        f"{wording.count(sample.parameters)} of {wording.count(record.parameters)} parameters "
        "were looked at.</p>\n"
    )


def _findings(record: OverlapRecord) -> str:
    items = "\n".join(f"<li>{escape(finding.text)}</li>" for finding in record.findings)
    found = f"<ul>\n{items}\n</ul>" if items else "<p>Nothing out of the ordinary.</p>"
    return f'<section id="findings">\n<h2>Findings</h2>\n{found}\n{_missing(record)}</section>'


def _missing(record: OverlapRecord) -> str:
    """What has no figure here, and where to get it."""
    known = {
        "pairwise": record.pairwise is not None,
        "thresholds": record.thresholds is not None,
        "energies": any(agent.retained is not None for agent in record.agents),
    }
    lacking = [MISSING[name] for name, is_known in known.items() if not is_known]
    if not lacking:
        return ""
    whose = "a merge counts no more than it needs" if record.kind == "merge" else "not asked for"
    return (
        f'<p class="missing">Not in this record: {"; ".join(lacking)} ({whose}). '
        "<code>mergekit-ram inspect</code> on the configuration counts them.</p>\n"
    )


def _agents(record: OverlapRecord) -> list[Table]:
    return [
        tables.agent_table(record),
        tables.degree_table(record),
        *tables.kept_tables(record),
    ]


def _tables(found: Sequence[Table]) -> str:
    return "\n".join([*map(as_html, found), meanings(found)])


def _section(figures: Any, record: OverlapRecord, section: Any) -> str:
    panels = "\n".join(_panel(panel, figures.caption(record, panel)) for panel in section.panels)
    return (
        f'<section>\n<h2>{escape(section.title)}</h2>\n<div class="panels">\n{panels}\n'
        "</div>\n</section>"
    )


def _panel(panel: Any, caption: str) -> str:
    description = panel.plot.to_json().replace("<", "\\u003c")
    style = f"min-height:{panel.plot.layout.height}px"
    style += f";min-width:{panel.min_width}px" if panel.min_width else ""
    title = escape(panel.title)
    return f"""<figure id="{panel.name}">
<h3>{title}</h3>
<figcaption>{escape(caption)}</figcaption>
{_choices(panel)}<div class="scroll" tabindex="0">
<div class="plot" role="img" aria-label="{title}" style="{style}"
 data-together="{panel.together}"></div>
</div>
<script type="application/json">{description}</script>
</figure>"""


def _choices(panel: Any) -> str:
    if not panel.choices:
        return ""
    labels = "\n".join(
        f"<label>{escape(choice.label)} <select>{_options(choice.options)}</select></label>"
        for choice in panel.choices
    )
    return f'<p class="choices">\n{labels}\n</p>\n'


def _options(options: tuple[str, ...]) -> str:
    return "".join(f"<option>{escape(option)}</option>" for option in options)


def _further_tables(record: OverlapRecord) -> str:
    found = [*tables.pair_tables(record), *tables.threshold_tables(record)]
    if not found:
        return ""
    return f"<section>\n<h2>Pairs and thresholds in numbers</h2>\n{_tables(found)}\n</section>"
