"""A record as tables for a terminal, or in Markdown for a model card."""

from __future__ import annotations

from collections.abc import Callable

from tabulate import tabulate

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show import wording
from mergekit_ram.show.columns import NAMES, Cell, Table
from mergekit_ram.show.tables import agent_names, tables
from mergekit_ram.text import in_markdown, visible


def as_text(record: OverlapRecord) -> str:
    """The whole record for a terminal."""
    parts = [_headline(record), *map(_as_plain, tables(record))]
    if record.findings:
        parts.append("\n".join(["Findings", *(f"  * {visible(f.text)}" for f in record.findings)]))
    return "\n\n".join(parts) + "\n"


def as_markdown(table: Table) -> str:
    """A table for a model card; its heading is left out."""
    return str(
        tabulate(
            _rows(table, in_markdown), _titles(table), tablefmt="github", disable_numparse=True
        )
    )


def _as_plain(table: Table) -> str:
    align = tuple("left" if title in NAMES else "right" for title in _titles(table))
    text = tabulate(
        _rows(table, visible),
        _titles(table),
        tablefmt="simple",
        colalign=align,
        disable_numparse=True,
    )
    return f"{table.heading}\n{text}"


def _titles(table: Table) -> list[str]:
    return [column.title for column in table.columns]


def _rows(table: Table, written: Callable[[str], str]) -> list[list[str]]:
    """The cells, each ``written`` so that no name in it is more than a name."""
    return [[written(_as_words(cell)) for cell in row] for row in table.rows]


def _as_words(cell: Cell) -> str:
    if cell.interval is None:
        return cell.text
    low, high = cell.interval
    return f"{cell.text} [{low}, {high}]"


def _headline(record: OverlapRecord) -> str:
    agents = f"{len(record.agents)} agent{'s' if len(record.agents) != 1 else ''}"
    lines = [
        f"{record.merge_method} over {record.base}: {agents}, "
        f"{wording.count(record.parameters)} parameters, ε = {wording.spanned(record.epsilon)}"
    ]
    sample = record.sample
    if sample is not None:
        lines.append(
            f"estimate from {sample.fraction:.3g} of the rows of every tensor "
            f"({wording.count(sample.parameters)} parameters, seed {sample.seed}); "
            "95 % intervals in brackets"
        )
    shortened = {name: model for model, name in agent_names(record).items() if name != model}
    lines += [f"{name}: {model}" for name, model in shortened.items()]
    return "\n".join(map(visible, lines))
