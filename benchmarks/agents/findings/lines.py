"""The lines of the tables: a merge, or what was tuned of a grid, on either split."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.agents.findings.results import BySeed, Results
from benchmarks.agents.findings.spread import PairedDifference, best, paired_difference
from benchmarks.agents.merges import catalogue

LIBRARY = (catalogue.FISHER, catalogue.WUDI)
"""The merges that are fusion-bench's."""


def heldout(results: Results, condition: str, name: str) -> BySeed:
    """Mean accuracy of a line of the tables on held-out prompts, by base."""
    if name not in catalogue.TUNED:
        return results.accuracy(condition, "fixed", name)
    return {
        seed: results.accuracy(condition, "grid", row["chosen"])[seed]
        for seed, row in results.tuned(condition, name).items()
    }


def difference(
    results: Results, condition: str, name: str, reference: str | BySeed
) -> PairedDifference | None:
    """Of two lines of the tables, or of one and other values, if both were measured."""
    mine = heldout(results, condition, name)
    theirs = heldout(results, condition, reference) if isinstance(reference, str) else reference
    return paired_difference(mine, theirs) if mine and theirs else None


def validation(results: Results, condition: str, name: str) -> BySeed:
    """The same on validation prompts."""
    if name not in catalogue.TUNED:
        return results.accuracy(condition, "fixed", name, split="validation")
    return {seed: row["validation"] for seed, row in results.tuned(condition, name).items()}


def best_baseline(results: Results, condition: str, names: Iterable[str]) -> str:
    """The one of these merges with the highest validation accuracy."""
    return best({name: validation(results, condition, name) for name in names})


def baselines() -> dict[str, list[str]]:
    """Groups of merges that are not ours, each under what it is called in tables."""
    fixed = [name for name in catalogue.FIXED if not catalogue.is_ours(name)]
    tuned = [name for name in catalogue.TUNED if not catalogue.is_ours(name)]
    return {
        "mergekit's, not tuned": fixed,
        "mergekit's, tuned or not": [*fixed, *tuned],
        "all": [*fixed, *tuned, *LIBRARY],
    }


def fixed_names() -> list[str]:
    """The merges that nobody tunes, ours last."""
    names = [name for name in catalogue.FIXED if not catalogue.is_ours(name)]
    ours = [name for name in catalogue.FIXED if catalogue.is_ours(name)]
    return [*names, *LIBRARY, *ours, catalogue.FLOAT32_OUTPUT]
