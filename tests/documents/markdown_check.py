"""What is broken in a markdown document, as it is rendered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = MarkdownIt("commonmark").enable("table")
CELL_END = re.compile(r"(?<!\\)\|")
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def problems(path: Path) -> list[str]:
    """One line for each broken table, fence and relative link of a document."""
    text = path.read_text(encoding="utf-8")
    tokens = PARSER.parse(text)
    lines = text.splitlines()
    found = [*_tables(tokens, lines), *_fences(tokens, lines), *_links(tokens, path)]
    return [f"{path.name}: {problem}" for problem in found]


def _tables(tokens: list[Token], lines: list[str]) -> Iterator[str]:
    for token in tokens:
        if token.type == "table_open":
            first, last = token.map or (0, 0)
            rows = [line.strip() for line in lines[first:last]]
            width = _cells(rows[0])
            for number, row in enumerate(rows, first + 1):
                if _cells(row) != width:
                    yield f"line {number} has {_cells(row)} cells, its table {width}"
        elif token.type == "inline":
            for line in token.content.splitlines():
                if line.lstrip().startswith("|"):
                    yield f"a row that belongs to no table: {line}"


def _cells(row: str) -> int:
    return len(CELL_END.split(row.removeprefix("|").removesuffix("|")))


def _fences(tokens: list[Token], lines: list[str]) -> Iterator[str]:
    for token in tokens:
        if token.type == "fence":
            first, last = token.map or (0, 0)
            if not lines[last - 1].strip().startswith(token.markup) or last - first < 2:
                yield f"line {first + 1} opens a block that is never closed"


def _links(tokens: list[Token], path: Path) -> Iterator[str]:
    for token in tokens:
        for child in token.children or ():
            if child.type == "text" and re.search(r"\]\[|\]\(", child.content):
                yield f"a link that is none: {child.content}"
            target = str(child.attrGet("href") or child.attrGet("src") or "")
            if target and not ADDRESS.match(target):
                yield from _broken(target, path)


def _broken(target: str, path: Path) -> Iterator[str]:
    name, _, anchor = unquote(target).partition("#")
    file = path.parent / name if name else path
    if not file.exists():
        yield f"{target} does not exist"
    elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
        yield f"{target}: no such heading"


def anchors(text: str) -> set[str]:
    """The names that GitHub gives the headings of a document."""
    seen: Counter[str] = Counter()
    found = set()
    tokens = PARSER.parse(text)
    for opening, title in pairwise(tokens):
        if opening.type == "heading_open":
            shown = "".join(
                child.content
                for child in title.children or ()
                if child.type in ("text", "code_inline")
            )
            slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found
