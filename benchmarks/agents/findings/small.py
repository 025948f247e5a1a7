"""Questions to what a run of the small scale found."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from benchmarks.agents.findings.spread import PairedDifference, paired_difference
from benchmarks.agents.merges import catalogue
from benchmarks.agents.running.ledger import Row
from benchmarks.agents.small.tasks import SMALL_TASKS

BASELINES = ("not tuned", "tuned or not")


def best_baseline(found: Row, baselines: str) -> str:
    """Of the merges that are not ours: the best on validation prompts."""
    names: Iterable[str] = found["merges"]
    if baselines == BASELINES[0]:
        names = [name for name in names if name not in catalogue.TUNED]
    others = [name for name in names if not catalogue.is_ours(name)]
    validation: dict[str, float] = found["validation"]
    return max(others, key=validation.__getitem__)


def difference(found: Row, name: str, reference: str) -> PairedDifference:
    """Of the mean accuracies, with the standard error over held-out prompts."""
    mine, theirs = (_right(found["merges"][each]) for each in (name, reference))
    return paired_difference(dict(enumerate(mine)), dict(enumerate(theirs)))


def own_accuracy(found: Row) -> float:
    """The mean of all agents, each on its own task."""
    return fmean(found["models"][name]["tasks"][name]["greedy"] for name in SMALL_TASKS)


def _right(row: Row) -> list[float]:
    return [float(bit) for name in SMALL_TASKS for bit in row["tasks"][name]["right"]]
