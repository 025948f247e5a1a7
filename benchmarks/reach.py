"""What the speed of this package is held to, and how far a run got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEGABYTE = 1e6

COLUMNS = "{:<48} {:>10} {:>10}  {}"


@dataclass(frozen=True)
class Ratio:
    """Seconds of one row divided by those of another, and what they are to be at most."""

    above: str
    below: str
    reach: float

    def line(self, seconds: Mapping[str, float]) -> str:
        value = seconds[self.above] / seconds[self.below]
        name, wanted = f"{self.above} / {self.below}", f"≤ {self.reach:g}"
        return COLUMNS.format(name, f"{value:.2f}", wanted, _met(value <= self.reach))


RATIOS = (
    Ratio("ram", "linear", 1.05),
    Ratio("ram_plus", "linear", 1.3),
    Ratio("ram_directions", "ties", 1.0),
    Ratio("inspect", "ram_plus", 2.0),
    Ratio("inspect, four epsilons", "inspect", 1.3),
)

MORE_MEMORY = {"ram": 64 * MEGABYTE, "ram_plus": 64 * MEGABYTE, "ram_directions": 1000 * MEGABYTE}
"""Anonymous bytes beyond those of linear, by method."""


def reach(seconds: Mapping[str, float], anonymous: Mapping[str, int]) -> str:
    """A table of all that was measured of what there is to reach.

    Args:
        seconds: medians by row.
        anonymous: peaks in bytes by method.
    """
    lines = [COLUMNS.format("reach", "measured", "wanted", "")]
    for ratio in RATIOS:
        if {ratio.above, ratio.below} <= seconds.keys():
            lines.append(ratio.line(seconds))
    for method, most in MORE_MEMORY.items():
        if {method, "linear"} <= anonymous.keys():
            more = anonymous[method] - anonymous["linear"]
            name, wanted = f"{method} − linear, anonymous", f"≤ {most / MEGABYTE:g} MB"
            measured = f"{more / MEGABYTE:+,.0f} MB"
            lines.append(COLUMNS.format(name, measured, wanted, _met(more <= most)))
    return "\n".join(lines)


def _met(is_met: bool) -> str:
    return "reached" if is_met else "missed"
