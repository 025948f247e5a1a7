"""What the speed of this package is held to, and how far a run got."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

IMPORT_ROUNDS = 7
MEGABYTE = 1e6

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch's switch for the entry points that it calls when it is imported; ours is one."""

COLUMNS = "{:<48} {:>10} {:>10}  {}"


@dataclass(frozen=True)
class Ratio:
    """Seconds of one row divided by those of another, and what they are to be."""

    above: str
    below: str
    reach: float
    at_least: bool = False
    dtypes: tuple[str, ...] = ("bfloat16", "float16")

    def line(self, seconds: Mapping[str, float]) -> str:
        value = seconds[self.above] / seconds[self.below]
        is_met = value >= self.reach if self.at_least else value <= self.reach
        sign = "≥" if self.at_least else "≤"
        name = f"{self.above} / {self.below}"
        return COLUMNS.format(name, f"{value:.2f}", f"{sign} {self.reach:g}", _met(is_met))


RATIOS = (
    Ratio("ram", "linear", 1.05),
    Ratio("ram_plus", "linear", 1.3),
    Ratio("ram", "linear", 1.25, dtypes=("float32",)),
    Ratio("ram_plus", "linear", 1.6, dtypes=("float32",)),
    Ratio("mergekit ramplus_tl", "ram_plus", 9.0, at_least=True),
    Ratio("ram_directions", "ties", 1.0),
    Ratio("inspect", "ram_plus", 2.0),
    Ratio("inspect, four epsilons", "inspect", 1.3),
    Ratio("inspect, sample 0.01", "inspect", 0.1),
    Ratio("inspect, sample 0.01", "ram_plus", 0.1),
    Ratio("inspect, directions", "ram_directions", 1.3),
)

MORE_MEMORY = {"ram": 64 * MEGABYTE, "ram_plus": 64 * MEGABYTE, "ram_directions": 1000 * MEGABYTE}
"""Anonymous bytes beyond those of linear, by method."""

MORE_IMPORT = 0.020
"""Seconds that ``import torch`` may take longer with the plugin."""

CALL_ENTRY_POINTS = """
import time, torch
from importlib.metadata import entry_points
start = time.perf_counter()
for point in entry_points(group="torch.backends"):
    point.load()()
print(time.perf_counter() - start)
"""
"""What torch does at the end of its import. Timed by itself: the whole import varies by more."""


def reach(
    dtype: str, seconds: Mapping[str, float], anonymous: Mapping[str, int], with_import: bool
) -> str:
    """A table of all that was measured of what there is to reach.

    Args:
        dtype: of the models.
        seconds: medians by row.
        anonymous: peaks in bytes by method.
        with_import: measure ``import torch`` too.
    """
    lines = [COLUMNS.format("reach", "measured", "wanted", "")]
    for ratio in RATIOS:
        if dtype in ratio.dtypes and {ratio.above, ratio.below} <= seconds.keys():
            lines.append(ratio.line(seconds))
    for method, most in MORE_MEMORY.items():
        if {method, "linear"} <= anonymous.keys():
            more = anonymous[method] - anonymous["linear"]
            lines.append(
                COLUMNS.format(
                    f"{method} − linear, anonymous",
                    f"{more / MEGABYTE:+,.0f} MB",
                    f"≤ {most / MEGABYTE:g} MB",
                    _met(more <= most),
                )
            )
    if with_import:
        more = _more_import_seconds()
        lines.append(
            COLUMNS.format(
                "import torch, more with the plugin",
                f"{more * 1e3:+.0f} ms",
                f"≤ {MORE_IMPORT * 1e3:g} ms",
                _met(more <= MORE_IMPORT),
            )
        )
    return "\n".join(lines)


def _met(is_met: bool) -> str:
    return "reached" if is_met else "missed"


def _more_import_seconds() -> float:
    """Median of what the entry points of torch take in a few fresh processes, to find and call."""
    taken = []
    for _ in range(IMPORT_ROUNDS):
        told = subprocess.run(
            [sys.executable, "-c", CALL_ENTRY_POINTS],
            env={**os.environ, AUTOLOAD: "0"},
            check=True,
            capture_output=True,
            text=True,
        )
        taken.append(float(told.stdout))
    return statistics.median(taken)
