"""Everything that is measured on the agents of one base under one condition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations

import torch

from benchmarks.agents.merges import catalogue
from benchmarks.agents.running.ledger import Ledger, fingerprint
from benchmarks.agents.running.machine import Row
from benchmarks.agents.scores.regions import Regions, overlap_rows, statistics
from benchmarks.agents.tiny import models
from benchmarks.agents.tiny.bench import Bench, Build, floats
from benchmarks.agents.tiny.conditions import Condition
from benchmarks.agents.tiny.fisher import fisher

PLAN = (catalogue.FIXED, catalogue.TUNED, catalogue.SWEEPS, catalogue.PAIRED, catalogue.OVER_RIDGE)
FINISHED = f"finished {fingerprint(PLAN)}"
"""Written last; whoever plans other merges measures those that are missing."""


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
    dtype = torch.bfloat16 if job.condition.stored_in_bf16 else torch.float32
    agents = {task: models.weights(agent) for task, agent in job.agents.items()}
    bench = Bench(job.base, models.weights(job.base), agents, dtype, job.ledger)
    _models(bench)
    _fixed_merges(bench)
    for name, grid in catalogue.TUNED.items():
        bench.tuned(name, grid)
    if job.condition.detailed:
        _sweeps(bench)
        _pairs(bench)
    _thresholds(bench)
    for merge in catalogue.OVER_RIDGE[:: bench.job.effort.grid_step]:
        bench.heldout("ridge", merge.label, bench.merging(merge))
    _regions(bench)
    bench.ledger.get("realised", lambda: _realised(bench))
    bench.ledger.get(FINISHED, lambda: {"kind": "finished"})


def _models(bench: Bench) -> None:
    """The base and the agents themselves."""
    for name, weights in {"base": bench.base, **bench.agents}.items():
        bench.heldout("model", name, lambda weights=weights: weights)


def _fixed_merges(bench: Bench) -> None:
    """The merges that nobody tunes, and what only fusion-bench has."""
    job = bench.job
    for name, merge in catalogue.FIXED.items():
        bench.both("fixed", name, bench.merging(merge))
    squares = partial(fisher, bench.agents, job.architecture, job.effort.fisher_prompts)
    bench.both("fixed", catalogue.FISHER, squares)
    bench.both("fixed", catalogue.WUDI, bench.wudi)
    exact = bench.merging(catalogue.FIXED["RAM+"], dtype=torch.float32)
    bench.both("fixed", catalogue.FLOAT32_OUTPUT, exact)


def _sweeps(bench: Bench) -> None:
    """Every point of the one-parameter grids on held-out prompts."""
    for grid in catalogue.SWEEPS.values():
        for merge in grid[:: bench.job.effort.grid_step]:
            bench.heldout("grid", merge.label, bench.merging(merge))


def _pairs(bench: Bench) -> None:
    """Merges of two agents, on the tasks of the two."""
    for pair in combinations(bench.agents, 2):
        agents = {task: bench.agents[task] for task in pair}
        for name in catalogue.PAIRED:
            merging = bench.merging(catalogue.FIXED[name], agents=agents)
            bench.score(f"pair {'+'.join(pair)}", name, "heldout", merging, tasks=pair)


def _thresholds(bench: Bench) -> None:
    """RAM+ at several ε, and what counts as changed at each."""
    for merge in catalogue.OVER_EPSILON:
        bench.heldout("epsilon", merge.label, bench.merging(merge))
        epsilon = merge.parameters["epsilon"]
        bench.ledger.get(f"overlap/{epsilon:g}", partial(_overlap, bench, epsilon))


def _overlap(bench: Bench, epsilon: float) -> Row:
    agents = overlap_rows(bench.base, bench.agents, epsilon)
    return {"kind": "overlap", "epsilon": epsilon, "agents": agents}


def _regions(bench: Bench) -> None:
    """An agent's own task with parts of its task vector alone."""
    for task in bench.agents:
        regions = Regions(bench.base, bench.agents, task)
        for name, build in _parts(regions, len(bench.agents), bench.job.effort.isotropy_draws):
            bench.score("region", f"{task}: {name}", "heldout", build, tasks=[task])


def _parts(regions: Regions, agents: int, draws: int) -> Iterator[tuple[str, Build]]:
    yield "unique", lambda: regions.model(regions.unique)
    yield "unique, diluted", lambda: regions.model(regions.unique, 1 / agents)
    yield "shared", lambda: regions.model(regions.shared)
    for draw in range(draws):
        half = regions.half(regions.unique, draw)
        yield f"half of unique, draw {draw}", lambda half=half: regions.model(half)


def _realised(bench: Bench) -> Row:
    """How much of λ is in a bfloat16 merge."""
    merged, plain = (
        floats(bench.merging(catalogue.FIXED[name], dtype=torch.bfloat16)())
        for name in ("RAM+", "RAM")
    )
    counted = statistics(bench.base, bench.agents)
    agents = {
        task: {"requested": counted.agent(task).rescale(r=0.1, alpha=2.0)}
        | asdict(Regions(bench.base, bench.agents, task).realised(merged, plain))
        for task in bench.agents
    }
    return {"kind": "realised", "agents": agents}
