"""The machine and the packages that figures were made with, as data and in words."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def versions(packages: Iterable[str]) -> Row:
    """Of Python and of packages."""
    return {"python": platform.python_version()} | {p: version(p) for p in packages}


def processor() -> str:
    """The model's name where Linux tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def in_words(document: Row, settings: str, processes: str = "processes") -> str:
    """A markdown list: when and where a run was, for how long, with what, how it was set."""
    machine, seconds = document["machine"], document["seconds"]
    times = ", ".join(f"{stage} {value:.0f} s" for stage, value in seconds.items())
    return "\n".join(
        [
            f"* {document['date']}, {machine['processor']}, {machine['processes']} {processes}",
            f"* {sum(seconds.values()) / 60:.0f} minutes in all: {times}",
            f"* {listed(document['versions'])}",
            f"* settings: {settings}",
        ]
    )


def listed(settings: Mapping[str, Any]) -> str:
    """Names and values; numbers without needless digits."""
    return ", ".join(
        f"{name} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in settings.items()
    )
