"""What a run found, as one JSON document, and questions to it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.agents import models
from benchmarks.agents.study import StudyJob

PACKAGES = (
    "mergekit-ram",
    "mergekit",
    "torch",
    "transformers",
    "trl",
    "datasets",
    "fusion-bench",
)
DIGITS = 4

Row = dict[str, Any]
BySeed = dict[int, float]


def collect(jobs: Sequence[StudyJob], seconds: dict[str, float], processes: int) -> Row:
    """Everything that the jobs have measured, how their agents were made, and with what."""
    effort = jobs[0].base.effort
    return {
        "date": date.today().isoformat(),
        "machine": {
            "system": platform.system(),
            "processor": processor(),
            "processes": processes,
        },
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "effort": asdict(effort),
        "seconds": {stage: round(value) for stage, value in seconds.items()},
        "conditions": {job.condition.name: asdict(job.condition) for job in jobs},
        "training": [_training(job) for job in jobs],
        "rows": [_rounded(row) for job in jobs for row in _rows(job)],
    }


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

    @property
    def heldout_prompts(self) -> int:
        """Per task."""
        return int(self.document["effort"]["heldout_prompts"])

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


def _rows(job: StudyJob) -> list[Row]:
    """The job's rows; of the grids' points on validation prompts only the best is kept."""
    where = {"condition": job.condition.name, "seed": job.base.seed}
    rows = job.ledger.rows.values()
    return [
        where | row for row in rows if (row["kind"], row.get("split")) != ("grid", "validation")
    ]


def _training(job: StudyJob) -> Row:
    """Steps, rewards and seconds of the agents."""
    agents = {task: models.record(agent) for task, agent in job.agents.items()}
    return {
        "condition": job.condition.name,
        "seed": job.base.seed,
        "base": models.record(job.base),
        "agents": agents,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, DIGITS) if isinstance(value, float) and value > 10**-DIGITS else value


def processor() -> str:
    """The model's name where Linux tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
