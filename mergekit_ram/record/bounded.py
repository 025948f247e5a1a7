"""JSON from outside, read within bounds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 512 * 1024 * 1024
"""A record of 20,000 tensors and 64 agents takes less."""

MAX_INTEGER = 2**63


def read_json(path: Path) -> Any:
    """The contents of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file, too large, or no JSON of finite numbers and moderate depth.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than any record")
    try:
        return json.loads(
            path.read_text(encoding="utf-8"),
            parse_constant=_refused,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refused(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is no number that a record holds")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refused(text)
    return number


def _bounded(text: str) -> int:
    # Many digits take long to convert.
    if len(text) > len(str(MAX_INTEGER)) or abs(int(text)) >= MAX_INTEGER:
        _refused(text)
    return int(text)
