"""A record as text for a terminal, and a table in Markdown."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tabulate import tabulate

from mergekit_ram.names import cut
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.columns import Column, count, spanned
from mergekit_ram.show.tables import Table, agent_names, tables
from mergekit_ram.text import in_markdown, visible

NARROWEST = 80
"""Columns of a window that is not known, or narrower."""

NAME_LENGTHS = (60, 24, 16, 10)
"""Tried one after the other where a name leaves no room for a figure."""


def as_text(record: OverlapRecord) -> str:
    """The whole record for a terminal, as wide as its window."""
    width = max(NARROWEST, shutil.get_terminal_size().columns)
    wrapped = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    blocks = ["\n".join(wrapped(visible(line), subsequent_indent="  ") for line in _head(record))]
    if record.verdict is not None:
        lines = [f"  {visible(line)}" for line in record.verdict.lines]
        blocks.append(_listed("Verdict", lines, wrapped))
    blocks += [_folded(table, width) for table in tables(record)]
    if record.findings:
        items = [f"  * {visible(finding.text)}" for finding in record.findings]
        blocks.append(_listed("Findings", items, wrapped))
    return "\n\n".join(blocks) + "\n"


def _listed(heading: str, items: Sequence[str], wrapped: Callable[..., str]) -> str:
    return "\n".join([heading, *(wrapped(item, subsequent_indent="    ") for item in items)])


def as_markdown(table: Table) -> str:
    """A table for a model card; its heading is left out."""
    return _grid(table.columns, table.parts, in_markdown, "pipe")


def _folded(table: Table, width: int) -> str:
    """A table in blocks below each other that are not wider than the window."""
    parts = table.parts[: table.most]
    names = [column for column in table.columns if column.is_name]
    rest = [column for column in table.columns if not column.is_name]
    blocks = []
    while rest:
        number, block = _widest(names, rest, parts, width)
        blocks.append(block)
        rest = rest[number:]
    left = len(table.parts) - len(parts)
    more = f"\n{left} more are in the files of --json and --html" if left else ""
    return f"{table.heading}\n" + "\n\n".join(blocks) + more


def _widest(
    names: Sequence[Column], rest: Sequence[Column], parts: Sequence[Any], width: int
) -> tuple[int, str]:
    """How many of the columns fit beside the names, and these in a block."""
    for length in NAME_LENGTHS:
        for number in range(len(rest), 0, -1):
            block = _grid([*names, *rest[:number]], parts, visible, "simple", length)
            if max(map(len, block.splitlines())) <= width:
                return number, block
    return number, block


def _grid(
    columns: Sequence[Column],
    parts: Sequence[Any],
    written: Callable[[str], str],
    style: str,
    longest: int | None = None,
) -> str:
    """A table whose cells are ``written`` so that a name in them is nothing but a name."""
    rows = [[written(_as_words(column, part)) for column in columns] for part in parts]
    return tabulate(
        [
            [
                cut(text, longest) if column.is_name and longest else text
                for column, text in zip(columns, row, strict=True)
            ]
            for row in rows
        ],
        [written(column.title) for column in columns],
        tablefmt=style,
        colalign=["left" if column.is_name else "right" for column in columns],
        disable_numparse=True,
    )


def _as_words(column: Column, part: Any) -> str:
    text, interval = column.cell(part)
    return f"{text} [{', '.join(interval)}]" if interval else text


def _head(record: OverlapRecord) -> list[str]:
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
    names = agent_names(record)
    return lines + [f"{name}: {model}" for model, name in names.items() if name != model]
