"""What a run of the tiny scale found, read, and questions to it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from benchmarks.agents.running.machine import Row

BySeed = dict[int, float]


@dataclass(frozen=True)
class Results:
    """The document, read."""

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
        """Their agents by condition and task; a name stands where a condition's does in rows."""
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

    def accuracy(
        self, condition: str, kind: str, name: str, split: str = "heldout", field: str = "greedy"
    ) -> BySeed:
        """Mean over the row's tasks, by base."""
        return {
            row["seed"]: fmean(score[field] for score in row["tasks"].values())
            for row in self.rows(condition, kind, name, split)
        }

    def task_accuracy(self, condition: str, kind: str, name: str, task: str) -> BySeed:
        """On one task, by base."""
        rows = self.rows(condition, kind, name)
        return {row["seed"]: row["tasks"][task]["greedy"] for row in rows}

    def retention(self, condition: str, kind: str, name: str) -> BySeed:
        """Loss on the pretraining mixture, by base."""
        return {row["seed"]: row["retention"] for row in self.rows(condition, kind, name)}

    def own(self, condition: str, tasks: Iterable[str], field: str = "greedy") -> BySeed:
        """The mean of all agents, each on its own task, by base."""
        scores: dict[int, list[float]] = {}
        for task in tasks:
            for row in self.rows(condition, "model", task):
                scores.setdefault(row["seed"], []).append(row["tasks"][task][field])
        return {seed: fmean(values) for seed, values in scores.items()}

    def tuned(self, condition: str, name: str) -> dict[int, Row]:
        """What was chosen of a grid on validation prompts, by base."""
        return {row["seed"]: row for row in self.rows(condition, "tuned", name)}

    @cached_property
    def _index(self) -> dict[tuple[str, str], list[Row]]:
        index: dict[tuple[str, str], list[Row]] = {}
        for row in self.document["rows"]:
            index.setdefault((row["condition"], row["kind"]), []).append(row)
        return index
