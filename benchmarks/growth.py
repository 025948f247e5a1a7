"""How a merge by units grows with workers and disks: a simulation from unit times.

::

    python -m benchmarks.growth

Workers take the next unit as they come free. A unit takes the longer of its arithmetic and of its
bytes over the disk, which all workers that are at it share evenly. The counting units come first,
and no shard is begun before the last of them is done. Rates of arithmetic are given per worker:
by default those of a worker with one thread beside another one, as ``benchmarks/by_units.py`` found
them on an AMD EPYC. ``--count`` and ``--merge`` take others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click
from tabulate import tabulate

BYTES_PER_PARAMETER = 2
GB = 1e9
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DISKS = (2, 20, 200)
"""GB/s that all workers share."""

COUNTING_UNITS = 64
STOPPED_PAYING = 1.1
"""Twice the workers gain less than a tenth."""


@dataclass(frozen=True)
class Case:
    """A merge: parameters of a model, number of agents, bytes of a shard."""

    name: str
    parameters: float
    agents: int
    shard: float = 5 * GB

    @property
    def model(self) -> float:
        """Bytes of one model."""
        return self.parameters * BYTES_PER_PARAMETER

    @property
    def read(self) -> float:
        """Bytes of all models."""
        return self.model * (self.agents + 1)


CASES = (Case("27B x 8", 27e9, 8), Case("671B x 3", 671e9, 3))


@dataclass(frozen=True)
class Unit:
    """Bytes over the disk, and seconds of arithmetic."""

    moved: float
    seconds: float


def units_of(case: Case, count_rate: float, merge_rate: float) -> tuple[list[Unit], list[Unit]]:
    """The counting units and the shards of a case."""
    counts = [
        Unit(case.read / COUNTING_UNITS, case.read / COUNTING_UNITS / count_rate)
        for _ in range(COUNTING_UNITS)
    ]
    shards = max(1, round(case.model / case.shard))
    share = (case.read + case.model) / shards
    return counts, [Unit(share, case.read / shards / merge_rate) for _ in range(shards)]


def finished(units: Sequence[Unit], workers: int, disk: float) -> float:
    """Seconds until the last unit is done.

    Units of one kind are equal, so that workers that begin together end together.
    """
    unit = units[0]
    rounds, left = divmod(len(units), workers)
    whole = max(unit.seconds, unit.moved * workers / disk)
    return rounds * whole + (max(unit.seconds, unit.moved * left / disk) if left else 0.0)


def limit_of(units: Sequence[Unit], workers: int, disk: float) -> str:
    """What binds: the disk, the arithmetic, or that there are no more units."""
    if workers > len(units):
        return "units"
    unit = units[0]
    return "disk" if unit.moved / (disk / workers) > unit.seconds else "arithmetic"


def row_of(case: Case, disk: float, count: float, merge: float) -> list[str]:
    """A case on one disk: minutes by workers, how many pay, and what limits those."""
    counts, shards = units_of(case, count, merge)
    seconds = [finished(counts, w, disk) + finished(shards, w, disk) for w in WORKERS]
    paying = 0
    while paying + 1 < len(WORKERS) and seconds[paying] / seconds[paying + 1] > STOPPED_PAYING:
        paying += 1
    limit = limit_of(shards, WORKERS[min(paying + 1, len(WORKERS) - 1)], disk)
    minutes = [f"{value / 60:,.1f}" for value in seconds]
    return [case.name, f"{disk / GB:g}", *minutes, f"{WORKERS[paying]}, then the {limit}"]


@click.command()
@click.option("--count", default=4.4, show_default=True, help="GB/s that a worker counts.")
@click.option("--merge", default=1.1, show_default=True, help="GB/s that a worker merges.")
def main(count: float, merge: float) -> None:
    """Print the table of docs/large.md."""
    rows = [row_of(case, disk * GB, count * GB, merge * GB) for case in CASES for disk in DISKS]
    head = ["merge", "GB/s", *map(str, WORKERS), "workers that pay"]
    click.echo(tabulate(rows, head, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
