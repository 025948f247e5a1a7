"""How the JSON of a record is laid out: to be looked at, and no longer than it has to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LINE_DEPTH = 3
"""Of nesting, down to which JSON is broken into lines."""


def lines(value: Any, depth: int = 0, key: str = "", last: str = "") -> Iterator[str]:
    """JSON in lines: one per field, and per item of lists of objects."""
    indent = " " * depth
    if depth < LINE_DEPTH and value and isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else (("", item) for item in value)
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        if isinstance(value, dict) or isinstance(value[0], dict):
            yield f"{indent}{key}{opening}"
            for number, (name, item) in enumerate(items, start=1):
                label = f"{json.dumps(name)}: " if isinstance(value, dict) else ""
                yield from lines(item, depth + 1, label, "," if number < len(value) else "")
            yield f"{indent}{closing}{last}"
            return
    # Characters that cannot be seen stand in strings alone, and are escaped there.
    text = json.dumps(value, ensure_ascii=False)
    yield f"{indent}{key}{text if text.isprintable() else json.dumps(value)}{last}"
