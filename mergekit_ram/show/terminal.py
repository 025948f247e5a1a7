"""A record as text for a terminal, and a table in Markdown."""

from __future__ import annotations

from collections.abc import Callable

from tabulate import tabulate

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.columns import Cell, count, spanned
from mergekit_ram.show.tables import Table, agent_names, tables
from mergekit_ram.visible import in_markdown, visible


def as_text(record: OverlapRecord) -> str:
    """The whole record for a terminal."""
    blocks = [_headline(record)]
    blocks += [f"{table.heading}\n{_written(table, visible, 'simple')}" for table in tables(record)]
    if record.findings:
        blocks.append("\n".join(["Findings", *(f"  * {visible(f.text)}" for f in record.findings)]))
    return "\n\n".join(blocks) + "\n"


def as_markdown(table: Table) -> str:
    """A table for a model card; its heading is left out."""
    return _written(table, in_markdown, "pipe")


def _written(table: Table, written: Callable[[str], str], style: str) -> str:
    """A table whose cells are ``written`` so that a name in them is nothing but a name."""
    return tabulate(
        [[written(_as_words(cell)) for cell in row] for row in table.rows],
        [column.title for column in table.columns],
        tablefmt=style,
        colalign=["left" if column.is_name else "right" for column in table.columns],
        disable_numparse=True,
    )


def _as_words(cell: Cell) -> str:
    return f"{cell.text} [{', '.join(cell.interval)}]" if cell.interval else cell.text


def _headline(record: OverlapRecord) -> str:
    agents = f"{len(record.agents)} agent{'s' if len(record.agents) != 1 else ''}"
    lines = [
        f"{record.merge_method} over {record.base}: {agents}, "
        f"{count(record.parameters)} parameters, ε = {spanned(record.epsilon)}"
    ]
    if record.sample is not None:
        lines.append(
            f"estimate from {record.sample.fraction:.3g} of the rows of every tensor "
            f"({count(record.sample.parameters)} parameters, seed {record.sample.seed}); "
            "95 % intervals in brackets"
        )
    shortened = {name: model for model, name in agent_names(record).items() if name != model}
    lines += [f"{name}: {model}" for name, model in shortened.items()]
    return "\n".join(map(visible, lines))
