"""The command ``report``: results into a document."""

from __future__ import annotations

import json
from pathlib import Path

import click

EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.argument("results", type=EXISTING)
@click.option(
    "--document",
    type=EXISTING,
    default=Path("docs/results.md"),
    show_default=True,
    help="Markdown whose tables, between <!-- table: NAME --> and <!-- end -->, are replaced.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to draw the figure too, as .svg or .png.",
)
@click.option(
    "--small",
    type=EXISTING,
    multiple=True,
    help="The small-SEED.json of a run of the small scale; may be given several times.",
)
def report(results: Path, document: Path, figure: Path | None, small: tuple[Path, ...]) -> None:
    """Fill the tables of a document from RESULTS, the results.json of a run.

    \b
      python -m benchmarks.agents report agents-benchmark/results.json \\
        --small small-agents-benchmark/small-0.json --figure docs/agents.svg
    """
    from benchmarks.agents.findings.results import Results
    from benchmarks.agents.tables import document as documents
    from benchmarks.agents.tables import figure as figures

    found = Results.read(results)
    documents.fill(document, found, [json.loads(file.read_text()) for file in small])
    click.echo(f"written: {document}")
    if figure is not None:
        figures.draw(found, figure)
        click.echo(f"written: {figure}")
