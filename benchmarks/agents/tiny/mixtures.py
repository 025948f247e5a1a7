"""Agents of different origin, from one base, merged: two of them, and eight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tasks import TASKS

from benchmarks.agents.merges import catalogue
from benchmarks.agents.running.ledger import Ledger, fingerprint
from benchmarks.agents.tiny import models
from benchmarks.agents.tiny.bench import Bench
from benchmarks.agents.tiny.conditions import BY_NAME

PLAN = (catalogue.FIXED, catalogue.MIXED, catalogue.MIXED_WEIGHTS)
FINISHED = f"finished {fingerprint(PLAN)}"


@dataclass(frozen=True)
class Mixture:
    """Agents by condition and task."""

    name: str
    members: tuple[tuple[str, str], ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the agents have learned."""
        return tuple(task for task in TASKS if task in {task for _, task in self.members})


MIXTURES = (
    Mixture("two: sparse, dense", (("subnetworks", "add"), ("supervised", "sort"))),
    Mixture("two: dense, sparse by SGD", (("dense", "reverse"), ("bf16-sgd", "sort"))),
    Mixture(
        "eight of three tasks",
        (
            *((condition, task) for condition in ("subnetworks", "supervised") for task in TASKS),
            *(("dense", "add"), ("dense", "sort")),
        ),
    ),
)


@dataclass(frozen=True)
class MixtureJob:
    """One base and the agents of a mixture, all trained."""

    base: models.BaseJob
    mixture: Mixture

    @property
    def agents(self) -> dict[str, models.AgentJob]:
        """By task and condition."""
        jobs = {
            (name, job.recipe.task): job
            for name in {name for name, _ in self.mixture.members}
            for job in models.agent_jobs(self.base, BY_NAME[name])
        }
        return {f"{task} of {name}": jobs[name, task] for name, task in self.mixture.members}

    @property
    def ledger(self) -> Ledger:
        """Its rows so far, kept under the names of the models and of how they are measured."""
        folders = [job.folder.name for job in self.agents.values()]
        name = f"mixture-{self.base.seed}-{fingerprint(folders, self.base.effort)}.jsonl"
        return Ledger(self.base.output / "evaluations" / name)

    def __str__(self) -> str:
        return f"{self.mixture.name} {self.base.seed}: merges"


def is_measured(job: MixtureJob) -> bool:
    """Whether an earlier run finished it."""
    return FINISHED in job.ledger.rows


def measure(job: MixtureJob) -> None:
    """Measure whatever is missing; to be called in a process of its own, with one thread."""
    agents = {name: models.weights(agent) for name, agent in job.agents.items()}
    base = models.weights(job.base)
    bench = Bench(job.base, base, agents, torch.float32, job.ledger, job.mixture.tasks)
    for name in catalogue.MIXED:
        bench.heldout("fixed", name, bench.merging(catalogue.FIXED[name]))
    bench.heldout("fixed", catalogue.WUDI, bench.wudi)
    bench.tuned(catalogue.TASK_ARITHMETIC, catalogue.MIXED_WEIGHTS)
    bench.ledger.get(FINISHED, lambda: {"kind": "finished"})
