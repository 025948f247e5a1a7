"""Everything that is measured on the agents of one base under one condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations
from typing import Any

import torch
from model import Shape
from tasks import TASKS

from benchmarks.agents import merges, models
from benchmarks.agents.conditions import Condition
from benchmarks.agents.effort import Effort
from benchmarks.agents.fusion import fisher, wudi
from benchmarks.agents.ledger import Ledger, Row, fingerprint
from benchmarks.agents.merges import Merge
from benchmarks.agents.regions import Regions, overlap_rows, statistics
from benchmarks.agents.scoring import Scorer, Weights, mean_accuracy

FINISHED = "finished"
FLOAT32_OUTPUT = "RAM+, float32 output"


@dataclass(frozen=True)
class StudyJob:
    """One base and its agents, all trained."""

    base: models.BaseJob
    condition: Condition

    @property
    def agents(self) -> dict[str, models.AgentJob]:
        """By task."""
        return {job.recipe.task: job for job in models.agent_jobs(self.base, self.condition)}

    @property
    def ledger(self) -> Ledger:
        """Its rows so far, kept under the names of the models and of how they are measured."""
        folders = [job.folder.name for job in self.agents.values()]
        key = fingerprint(folders, self.base.effort)
        name = f"{self.condition.name}-{self.base.seed}-{key}.jsonl"
        return Ledger(self.base.output / "evaluations" / name)

    def __str__(self) -> str:
        return f"{self.condition.name} {self.base.seed}: merges"


def is_measured(job: StudyJob) -> bool:
    """Whether an earlier run finished it."""
    return FINISHED in job.ledger.rows


def measure(job: StudyJob) -> None:
    """Measure whatever is missing; to be called in a process of its own, with one thread."""
    study = _Study(job)
    study.models()
    study.fixed_merges()
    study.tuned_merges()
    if job.condition.detailed:
        study.sweeps()
        study.pairs()
    study.thresholds()
    study.regions()
    study.realised()
    study.ledger.get(FINISHED, lambda: {"kind": FINISHED})


class _Study:
    def __init__(self, job: StudyJob) -> None:
        self.seed = job.base.seed
        self.effort: Effort = job.base.effort
        self.architecture = job.base.architecture
        self.dtype = torch.bfloat16 if job.condition.stored_in_bf16 else torch.float32
        self.base = models.weights(job.base)
        self.agents = {task: models.weights(agent) for task, agent in job.agents.items()}
        self.scorer = Scorer(Shape(self.architecture), self.effort)
        self.ledger = job.ledger

    def models(self) -> None:
        """The base and the agents themselves."""
        for name, weights in {"base": self.base, **self.agents}.items():
            self._heldout("model", name, lambda weights=weights: weights)

    def fixed_merges(self) -> None:
        """The merges that nobody tunes, and what only fusion-bench has."""
        for name, merge in merges.FIXED.items():
            self._both("fixed", name, self._merging(merge))
        fisher_prompts, iterations = self.effort.fisher_prompts, self.effort.wudi_iterations
        self._both(
            "fixed", "Fisher", lambda: fisher(self.agents, self.architecture, fisher_prompts)
        )
        self._both("fixed", "WUDI", lambda: wudi(self.base, self.agents, iterations))
        self._both(
            "fixed", FLOAT32_OUTPUT, self._merging(merges.FIXED["RAM+"], dtype=torch.float32)
        )

    def tuned_merges(self) -> None:
        """Every point of every grid on validation prompts, the best one on held-out ones."""
        for name, grid in merges.TUNED.items():
            thinned = grid[:: self.effort.grid_step]
            points = {merge.label: merge for merge in thinned}
            found = {
                label: mean_accuracy(self._score("grid", label, "validation", self._merging(m)))
                for label, m in points.items()
            }
            best = max(found, key=found.__getitem__)
            self._heldout("grid", best, self._merging(points[best]))
            self.ledger.get(
                f"tuned/{name}",
                lambda name=name, best=best, found=found: {
                    "kind": "tuned",
                    "name": name,
                    "chosen": best,
                    "validation": found[best],
                },
            )

    def sweeps(self) -> None:
        """Every point of the one-parameter grids on held-out prompts."""
        for grid in merges.SWEEPS.values():
            for merge in grid[:: self.effort.grid_step]:
                self._heldout("grid", merge.label, self._merging(merge))

    def pairs(self) -> None:
        """Merges of two agents, on the tasks of the two."""
        for pair in combinations(self.agents, 2):
            agents = {task: self.agents[task] for task in pair}
            for name in merges.PAIRED:
                merging = self._merging(merges.FIXED[name], agents=agents)
                self._score(f"pair {'+'.join(pair)}", name, "heldout", merging, tasks=pair)

    def thresholds(self) -> None:
        """RAM+ at several ε, and what counts as changed at each."""
        for merge in merges.OVER_EPSILON:
            self._heldout("epsilon", merge.label, self._merging(merge))
            self.ledger.get(
                f"overlap/{merge.parameters['epsilon']:g}",
                lambda merge=merge: self._overlap(merge.parameters["epsilon"]),
            )

    def regions(self) -> None:
        """An agent's own task with parts of its task vector alone."""
        for task in self.agents:
            regions = Regions(self.base, self.agents, task)
            for name, build in self._parts(regions):
                self._score("region", f"{task}: {name}", "heldout", build, tasks=[task])

    def realised(self) -> None:
        """How much of λ is in a bfloat16 merge."""
        self.ledger.get("realised", self._realised)

    def _parts(self, regions: Regions) -> Iterator[tuple[str, Callable[[], Weights]]]:
        diluted = 1 / len(self.agents)
        yield "unique", lambda: regions.model(regions.unique)
        yield "unique, diluted", lambda: regions.model(regions.unique, diluted)
        yield "shared", lambda: regions.model(regions.shared)
        for draw in range(self.effort.isotropy_draws):
            half = regions.half(regions.unique, draw)
            yield f"half of unique, draw {draw}", lambda half=half: regions.model(half)

    def _overlap(self, epsilon: float) -> Row:
        agents = overlap_rows(self.base, self.agents, epsilon)
        return {"kind": "overlap", "epsilon": epsilon, "agents": agents}

    def _realised(self) -> Row:
        merged = _floats(merges.FIXED["RAM+"](self.base, self.agents, torch.bfloat16, self.seed))
        plain = _floats(merges.FIXED["RAM"](self.base, self.agents, torch.bfloat16, self.seed))
        counted = statistics(self.base, self.agents)
        agents = {
            task: {"requested": counted.agent(task).rescale(r=0.1, alpha=2.0)}
            | asdict(Regions(self.base, self.agents, task).realised(merged, plain))
            for task in self.agents
        }
        return {"kind": "realised", "agents": agents}

    def _merging(
        self,
        merge: Merge,
        agents: Mapping[str, Weights] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Callable[[], Weights]:
        chosen = self.agents if agents is None else agents
        return lambda: merge(self.base, chosen, dtype or self.dtype, self.seed)

    def _both(self, kind: str, name: str, build: Callable[[], Weights]) -> None:
        build_once = cache(build)
        self._score(kind, name, "validation", build_once)
        self._heldout(kind, name, build_once)

    def _heldout(self, kind: str, name: str, build: Callable[[], Weights]) -> None:
        self._score(kind, name, "heldout", build, retention=True)

    def _score(
        self,
        kind: str,
        name: str,
        split: str,
        build: Callable[[], Weights],
        tasks: Sequence[str] = tuple(TASKS),
        retention: bool = False,
    ) -> Row:
        def measured() -> Row:
            weights = _floats(build())
            scores = self.scorer.score(weights, split, tasks)
            row: dict[str, Any] = {"kind": kind, "name": name, "split": split}
            row["tasks"] = {task: asdict(score) for task, score in scores.items()}
            if retention:
                row["retention"] = self.scorer.retention(weights)
            return row

        return self.ledger.get(f"{kind}/{name}/{split}", measured)


def _floats(weights: Weights) -> Weights:
    return {name: value.detach().float() for name, value in weights.items()}
