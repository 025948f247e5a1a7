"""The tables of a record in HTML, with what their columns mean."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from mergekit_ram.show.columns import NAMES, Cell, Column, Table


def as_html(table: Table) -> str:
    """A table under its heading, which scrolls by itself where the screen is narrow."""
    names = "".join(
        f'<th scope="col"{_kind(column)}>{escape(column.title)}</th>' for column in table.columns
    )
    body = "\n".join(
        f'<tr><th scope="row">{_content(first)}</th>'
        f"{''.join(map(_cell, table.columns[1:], cells))}</tr>"
        for first, *cells in table.rows
    )
    return (
        f"<h3>{escape(table.heading)}</h3>\n"
        f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def meanings(tables: Iterable[Table]) -> str:
    """What every column of some tables says, each said once."""
    columns: dict[str, Column] = {}
    for table in tables:
        for column in table.columns:
            columns.setdefault(column.title, column)
    words = "; ".join(
        f"<b>{escape(column.title)}</b>: {escape(column.meaning)}" for column in columns.values()
    )
    return f'<p class="meanings">{words}.</p>'


def _cell(column: Column, cell: Cell) -> str:
    return f"<td{_kind(column)}>{_content(cell)}</td>"


def _kind(column: Column) -> str:
    return ' class="name"' if column.title in NAMES else ""


def _content(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.interval is None:
        return text
    return f"{text} <small>95 %: {escape(' to '.join(cell.interval))}</small>"
