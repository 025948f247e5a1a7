"""What is finished: rows in a file, one line each, so that a run that was cut off goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.agents.running.machine import Row

FINGERPRINT_LENGTH = 10


def fingerprint(*settings: Any) -> str:
    """A name for settings: dataclasses and what JSON knows. Other settings, another name."""
    text = json.dumps(settings, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_LENGTH]


class Ledger:
    """An append-only file of rows, each under a key of its own."""

    def __init__(self, file: Path) -> None:
        """Read what an earlier run has left; a line that it was cut off in is dropped."""
        self.rows: dict[str, Row] = {}
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        whole, _, torn = (file.read_text() if file.exists() else "").rpartition("\n")
        if torn:
            file.write_text(whole + "\n")
        for line in whole.splitlines():
            entry = json.loads(line)
            self.rows[entry["key"]] = entry["row"]

    def get(self, key: str, measure: Callable[[], Row]) -> Row:
        """The row of a key, measured and written down unless it is there."""
        if key not in self.rows:
            self.rows[key] = measure()
            with self._file.open("a") as out:
                out.write(json.dumps({"key": key, "row": self.rows[key]}) + "\n")
        return self.rows[key]
