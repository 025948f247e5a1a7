"""A base and agents made from it: merge them, score what comes out, and write rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

import torch
from model import Shape
from tasks import TASKS

from benchmarks.agents.merges.catalogue import Merge
from benchmarks.agents.merges.fusion import wudi
from benchmarks.agents.running.ledger import Ledger, fingerprint
from benchmarks.agents.running.machine import Row
from benchmarks.agents.scores.likelihood import mean_accuracy
from benchmarks.agents.tiny import models
from benchmarks.agents.tiny.scorer import Scorer, Weights

Build = Callable[[], Weights]


@dataclass(frozen=True)
class Bench:
    """Agents by name, in float32; ``dtype`` is what merges are rounded to to be scored."""

    job: models.BaseJob
    base: Weights
    agents: Mapping[str, Weights]
    dtype: torch.dtype
    ledger: Ledger
    tasks: Sequence[str] = tuple(TASKS)

    @cached_property
    def scorer(self) -> Scorer:
        """Its prompts are tokenized once."""
        return Scorer(Shape(self.job.architecture), self.job.effort)

    def merging(
        self,
        merge: Merge,
        agents: Mapping[str, Weights] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Build:
        """A merge of all agents, or of some, to be done when it is needed."""
        chosen = self.agents if agents is None else agents
        return lambda: merge(self.base, chosen, dtype or self.dtype, self.job.seed)

    def wudi(self) -> Weights:
        """fusion-bench's merge that optimises every matrix."""
        return wudi(self.base, self.agents, self.job.effort.wudi_iterations)

    def both(self, kind: str, name: str, build: Build) -> None:
        """Score on validation and on held-out prompts."""
        build_once = cache(build)
        self.score(kind, name, "validation", build_once)
        self.heldout(kind, name, build_once)

    def heldout(self, kind: str, name: str, build: Build) -> None:
        """Score on held-out prompts, retention too."""
        self.score(kind, name, "heldout", build, retention=True)

    def tuned(self, name: str, grid: Sequence[Merge]) -> None:
        """Every point of a grid on validation prompts, the best one on held-out ones."""
        points = {merge.label: merge for merge in grid[:: self.job.effort.grid_step]}
        key = f"tuned/{name}/{fingerprint(list(points))}"
        if key in self.ledger.rows:
            return
        found = {
            label: mean_accuracy(self.score("grid", label, "validation", self.merging(merge)))
            for label, merge in points.items()
        }
        best = max(found, key=found.__getitem__)
        self.heldout("grid", best, self.merging(points[best]))
        row = {"kind": "tuned", "name": name, "chosen": best, "validation": found[best]}
        self.ledger.get(key, lambda: row)

    def score(
        self,
        kind: str,
        name: str,
        split: str,
        build: Build,
        tasks: Sequence[str] | None = None,
        retention: bool = False,
    ) -> Row:
        """The row of what ``build`` makes: measured, unless the ledger has it."""

        def measured() -> Row:
            weights = floats(build())
            scores = self.scorer.score(weights, split, tasks or self.tasks)
            row: dict[str, Any] = {"kind": kind, "name": name, "split": split}
            row["tasks"] = {task: asdict(score) for task, score in scores.items()}
            if retention:
                row["retention"] = self.scorer.retention(weights)
            return row

        return self.ledger.get(f"{kind}/{name}/{split}", measured)


def floats(weights: Weights) -> Weights:
    """In float32, without gradients."""
    return {name: value.detach().float() for name, value in weights.items()}
