"""Results of a run, read again, and their means, spreads and differences between merges."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.agents import merges
from benchmarks.agents.jobs import Row

BySeed = dict[int, float]

LIBRARY = (merges.FISHER, merges.WUDI)
"""The merges that are fusion-bench's."""


@dataclass(frozen=True)
class Spread:
    """A mean over bases, and its uncertainty (None for a single base).

    ``error`` is the standard deviation between bases, or the standard error of a paired difference.
    """

    mean: float
    error: float | None
    count: int


def summarise(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation."""
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Spread:
    """``values`` minus ``reference`` over the bases that both have, with its standard error.

    Bases differ more from one another than merges do; pairing takes that out.
    """
    seeds = sorted(values.keys() & reference.keys())
    found = summarise([values[seed] - reference[seed] for seed in seeds])
    error = None if found.error is None else found.error / math.sqrt(found.count)
    return Spread(found.mean, error, found.count)


@dataclass(frozen=True)
class Results:
    """The document that a run wrote."""

    document: Row

    @classmethod
    def read(cls, file: Path) -> Results:
        """From the file that a run wrote."""
        return cls(json.loads(file.read_text()))

    @property
    def conditions(self) -> list[str]:
        """Names, in the order of the run."""
        return list(self.document["conditions"])

    def bases(self, condition: str) -> int:
        """How many were measured."""
        return len(self.accuracy(condition, "model", "base"))

    @property
    def mixtures(self) -> dict[str, list[tuple[str, str]]]:
        """Their agents by condition and task; in rows the name is in the condition's place."""
        return {
            name: [(condition, task) for condition, task in members]
            for name, members in self.document.get("mixtures", {}).items()
        }

    def rows(self, condition: str, kind: str, name: str = "", split: str = "heldout") -> list[Row]:
        """The rows of one kind and, if given, of one name, of all bases."""
        found = self._index.get((condition, kind), [])
        return [
            row
            for row in found
            if row.get("split", split) == split and (not name or row["name"] == name)
        ]

    def accuracy(self, condition: str, kind: str, name: str, split: str = "heldout") -> BySeed:
        """Mean over the row's tasks, by base."""
        rows = self.rows(condition, kind, name, split)
        return {row["seed"]: fmean(row["tasks"].values()) for row in rows}

    def task_accuracy(self, condition: str, kind: str, name: str, task: str) -> BySeed:
        """On one task, by base."""
        return {row["seed"]: row["tasks"][task] for row in self.rows(condition, kind, name)}

    def own(self, agents: Iterable[tuple[str, str]]) -> BySeed:
        """The mean of agents, given by condition and task, each on its own task, by base."""
        found = [self.task_accuracy(c, "model", task, task) for c, task in agents]
        seeds = sorted(set.intersection(*map(set, found)))
        return {seed: fmean(each[seed] for each in found) for seed in seeds}

    def tuned(self, condition: str, name: str) -> dict[int, Row]:
        """The points of a grid that validation prompts chose, by base."""
        return {row["seed"]: row for row in self.rows(condition, "tuned", name)}

    def merged(self, condition: str, name: str, split: str = "heldout") -> BySeed:
        """Mean accuracy of a merge, fixed or tuned, by base."""
        if name not in merges.TUNED:
            return self.accuracy(condition, "fixed", name, split)
        tuned = self.tuned(condition, name)
        if split == "validation":
            return {seed: row["validation"] for seed, row in tuned.items()}
        return {
            seed: self.accuracy(condition, "grid", row["chosen"])[seed]
            for seed, row in tuned.items()
        }

    def difference(self, condition: str, name: str, reference: str | BySeed) -> Spread | None:
        """Of a merge and another, or other values, if both were measured."""
        mine = self.merged(condition, name)
        theirs = self.merged(condition, reference) if isinstance(reference, str) else reference
        return paired_difference(mine, theirs) if mine and theirs else None

    def best(self, condition: str, names: Iterable[str]) -> str:
        """The merge with the highest mean over bases on validation prompts, never on others."""
        found = {name: self.merged(condition, name, "validation") for name in names}
        return max(found, key=lambda name: fmean(found[name].values()))

    @cached_property
    def _index(self) -> dict[tuple[str, str], list[Row]]:
        index: dict[tuple[str, str], list[Row]] = {}
        for row in self.document["rows"]:
            index.setdefault((row["condition"], row["kind"]), []).append(row)
        return index


def baselines() -> dict[str, list[str]]:
    """Groups of merges that are not ours, each under its name in tables."""
    fixed = [name for name in merges.FIXED if not merges.is_ours(name)]
    tuned = [name for name in merges.TUNED if not merges.is_ours(name)]
    return {
        "mergekit's, not tuned": fixed,
        "mergekit's, tuned or not": [*fixed, *tuned],
        "all": [*fixed, *tuned, *LIBRARY],
    }


def fixed_names() -> list[str]:
    """The merges without tuning, ours last."""
    names = [name for name in merges.FIXED if not merges.is_ours(name)]
    ours = [name for name in merges.FIXED if merges.is_ours(name)]
    return [*names, *LIBRARY, *ours, merges.FLOAT32_OUTPUT]
