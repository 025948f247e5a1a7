"""The lines of the tables: a merge, or what was tuned of a grid, on either split."""

from __future__ import annotations

from benchmarks.agents import merges
from benchmarks.agents.results import BySeed, Results
from benchmarks.agents.spread import best
from benchmarks.agents.study import FLOAT32_OUTPUT

LIBRARY = ("Fisher", "WUDI")
"""The merges that are fusion-bench's."""


def heldout(results: Results, condition: str, name: str) -> BySeed:
    """Mean accuracy of a line of the tables on held-out prompts, by base."""
    if name not in merges.TUNED:
        return results.accuracy(condition, "fixed", name)
    return {
        seed: results.accuracy(condition, "grid", row["chosen"])[seed]
        for seed, row in results.tuned(condition, name).items()
    }


def validation(results: Results, condition: str, name: str) -> BySeed:
    """The same on validation prompts."""
    if name not in merges.TUNED:
        return results.accuracy(condition, "fixed", name, split="validation")
    return {seed: row["validation"] for seed, row in results.tuned(condition, name).items()}


def best_baseline(results: Results, condition: str, tuned: bool) -> str:
    """The merge that is not ours with the highest validation accuracy."""
    names = [*fixed_names(), *(merges.TUNED if tuned else ())]
    return best({n: validation(results, condition, n) for n in names if not merges.is_ours(n)})


def fixed_names() -> list[str]:
    names = [name for name in merges.FIXED if not merges.is_ours(name)]
    ours = [name for name in merges.FIXED if merges.is_ours(name)]
    return [*names, *LIBRARY, *ours, FLOAT32_OUTPUT]
