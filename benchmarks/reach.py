"""What the speed of this package is held to, and how far a run got."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

IMPORT_ROUNDS = 7
MEGABYTE = 1e6

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch's switch for the entry points that it calls when it is imported; ours is one."""

COLUMNS = "{:<44} {:>10} {:>10}  {}"


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
    Ratio("inspect", "ram_plus", 2.0),
    Ratio("inspect, four epsilons", "inspect", 1.3),
    Ratio("inspect, sample 0.01", "ram_plus", 0.1),
)

MORE_MEMORY = 64 * MEGABYTE
"""Anonymous bytes beyond those of linear."""

MORE_IMPORT = 0.020
"""Seconds that ``import torch`` may take longer with the plugin."""


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
    for method in ("ram", "ram_plus"):
        if {method, "linear"} <= anonymous.keys():
            more = anonymous[method] - anonymous["linear"]
            lines.append(
                COLUMNS.format(
                    f"{method} − linear, anonymous",
                    f"{more / MEGABYTE:+,.0f} MB",
                    f"≤ {MORE_MEMORY / MEGABYTE:g} MB",
                    _met(more <= MORE_MEMORY),
                )
            )
    if with_import:
        more = _more_import_seconds()
        lines.append(
            COLUMNS.format(
                "import torch, with the plugin − without",
                f"{more * 1e3:+.0f} ms",
                f"≤ {MORE_IMPORT * 1e3:g} ms",
                _met(more <= MORE_IMPORT),
            )
        )
    return "\n".join(lines)


def _met(is_met: bool) -> str:
    return "reached" if is_met else "missed"


def _more_import_seconds() -> float:
    """What the plugin adds to the median of a few processes that import torch, in turns."""
    taken: dict[str, list[float]] = {"0": [], "1": []}
    for _ in range(IMPORT_ROUNDS):
        for autoload, found in taken.items():
            start = time.perf_counter()
            environment = {**os.environ, AUTOLOAD: autoload}
            subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)
            found.append(time.perf_counter() - start)
    return statistics.median(taken["1"]) - statistics.median(taken["0"])
