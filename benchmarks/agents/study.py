"""Everything that is measured of a base and its agents: merges, scored on prompts, as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache, partial
from itertools import islice
from random import Random
from statistics import fmean
from typing import Any

import torch
from model import Shape, new_model, new_tokenizer
from pretrain import IGNORED_LABEL, answered_batch
from tasks import TASKS, heldout_prompts, right_answer, training_prompts, validation_prompts
from transformers import PreTrainedModel

from benchmarks.agents import merges, models
from benchmarks.agents.conditions import BY_NAME, Condition, Effort
from benchmarks.agents.jobs import Ledger, Row, fingerprint, processor, versions
from benchmarks.agents.merges import Merge, Weights
from mergekit_ram import OverlapStatistics, count
from mergekit_ram.overlap import AgentCounts, TensorOverlap

Build = Callable[[], Weights]
Batch = dict[str, torch.Tensor]

EPSILON = 1e-5
BATCH_SIZE = 100
FISHER_BATCH, FISHER_SEED = 8, 0
DIGITS = 4
PACKAGES = ("mergekit-ram", "mergekit", "torch", "transformers", "trl", "datasets", "fusion-bench")


@dataclass(frozen=True)
class Job:
    """Agents of one base, trained, by name; they are of one condition, or a mixture of several."""

    base: models.BaseJob
    name: str
    members: tuple[tuple[str, str], ...]
    """Conditions and tasks of the agents."""
    condition: Condition | None = None
    """None for a mixture."""

    @property
    def agents(self) -> dict[str, models.AgentJob]:
        """By task, or by task and condition."""
        made = {
            (name, job.recipe.task): job
            for name in dict.fromkeys(name for name, _ in self.members)
            for job in models.agent_jobs(self.base, BY_NAME[name])
        }
        if self.condition is not None:
            return {task: made[name, task] for name, task in self.members}
        return {f"{task} of {name}": made[name, task] for name, task in self.members}

    @property
    def ledger(self) -> Ledger:
        """Its rows so far, kept under the names of the models and of how they are measured."""
        folders = [job.folder.name for job in self.agents.values()]
        kind = self.name if self.condition is not None else "mixture"
        name = f"{kind}-{self.base.seed}-{fingerprint(folders, self.base.effort)}.jsonl"
        return Ledger(self.base.output / "evaluations" / name)

    def __str__(self) -> str:
        return f"{self.name} {self.base.seed}: merges"


def study(base: models.BaseJob, condition: Condition) -> Job:
    """The agents of one condition."""
    members = tuple((condition.name, recipe.task) for recipe in condition.recipes)
    return Job(base, condition.name, members, condition)


MIXTURES: dict[str, tuple[tuple[str, str], ...]] = {
    "two: sparse, dense": (("subnetworks", "add"), ("supervised", "sort")),
    "two: dense, sparse by SGD": (("dense", "reverse"), ("bf16-sgd", "sort")),
    "eight of three tasks": (
        *((condition, task) for condition in ("subnetworks", "supervised") for task in TASKS),
        *(("dense", "add"), ("dense", "sort")),
    ),
}
PLAN = (merges.FIXED, merges.TUNED, merges.SWEEPS, merges.OVER_RIDGE, merges.MIXED)
FINISHED = f"finished {fingerprint(PLAN)}"
"""Written last; a run that plans other merges measures those that are missing."""


def is_measured(job: Job) -> bool:
    """Whether an earlier run finished it."""
    return FINISHED in job.ledger.rows


def measure(job: Job) -> None:
    """Measure all that is missing; to be called in a process of its own, with one thread."""
    bench = Bench(job)
    if job.condition is None:
        for name in merges.MIXED:
            bench.score("fixed", name, "heldout", bench.merging(merges.FIXED[name]))
        bench.score("fixed", merges.WUDI, "heldout", bench.wudi)
        bench.tuned(merges.TASK_ARITHMETIC, merges.MIXED_WEIGHTS)
    else:
        _measure_condition(bench, job.condition)
    bench.ledger.get(FINISHED, lambda: {"kind": "finished"})


def _measure_condition(bench: Bench, condition: Condition) -> None:
    step = bench.effort.grid_step
    for name, weights in {"base": bench.base, **bench.agents}.items():
        bench.score("model", name, "heldout", lambda weights=weights: weights)
    fixed = {name: bench.merging(merge) for name, merge in merges.FIXED.items()}
    fixed[merges.FISHER] = bench.fisher
    fixed[merges.WUDI] = bench.wudi
    fixed[merges.FLOAT32_OUTPUT] = bench.merging(merges.FIXED["RAM+"], torch.float32)
    for name, build in fixed.items():
        build_once = cache(build)
        for split in ("validation", "heldout"):
            bench.score("fixed", name, split, build_once)
    for name, grid in merges.TUNED.items():
        bench.tuned(name, grid)
    if condition.detailed:
        for grid in merges.SWEEPS.values():
            for merge in grid[::step]:
                bench.score("grid", merge.label, "heldout", bench.merging(merge))
    for merge in merges.OVER_EPSILON:
        bench.score("epsilon", merge.label, "heldout", bench.merging(merge))
        epsilon = merge.parameters["epsilon"]
        bench.ledger.get(f"overlap/{epsilon:g}", partial(_overlap, bench, epsilon))
    for merge in merges.OVER_RIDGE[::step]:
        bench.score("ridge", merge.label, "heldout", bench.merging(merge))


class Bench:
    """A base and its agents in float32, and rows of what their merges get right."""

    def __init__(self, job: Job) -> None:
        self.effort, self.ledger = job.base.effort, job.ledger
        self.base = models.weights(job.base)
        self.agents = {name: models.weights(agent) for name, agent in job.agents.items()}
        rounded = job.condition is not None and job.condition.stored_in_bf16
        self._dtype = torch.bfloat16 if rounded else torch.float32
        self._job = job
        learned = {task for _, task in job.members}
        self._tasks = [task for task in TASKS if task in learned]
        self._scorer = cache(lambda: Scorer(Shape(job.base.architecture), self.effort))

    def merging(self, merge: Merge, dtype: torch.dtype | None = None) -> Build:
        """A merge of all agents, to be done when it is needed."""
        return lambda: merge(self.base, self.agents, dtype or self._dtype, self._job.base.seed)

    def wudi(self) -> Weights:
        """fusion-bench's merge that optimises every matrix."""
        return merges.wudi(self.base, self.agents, self.effort.wudi_iterations)

    def fisher(self) -> Weights:
        """By each agent's squared gradients on training prompts of its own task."""
        prompts, tokenizer = self.effort.fisher_prompts, new_tokenizer()
        squares = []
        for task, weights in self.agents.items():
            model = new_model(tokenizer, Shape(self._job.base.architecture)).eval()
            model.load_state_dict(weights, strict=False)
            drawn = list(islice(training_prompts(TASKS[task], Random(FISHER_SEED)), prompts))
            batches = (
                answered_batch(tokenizer, part, [right_answer(p) for p in part])
                for part in (drawn[i : i + FISHER_BATCH] for i in range(0, prompts, FISHER_BATCH))
            )
            squares.append(merges.squared_gradients(model, batches, prompts))
        return merges.fisher(list(self.agents.values()), squares)

    def tuned(self, name: str, grid: Sequence[Merge]) -> None:
        """Every point of a grid on validation prompts, the best one on held-out ones."""
        points = {merge.label: merge for merge in grid[:: self.effort.grid_step]}
        key = f"tuned/{name}/{fingerprint(list(points))}"
        if key in self.ledger.rows:
            return
        found = {
            label: fmean(
                self.score("grid", label, "validation", self.merging(merge))["tasks"].values()
            )
            for label, merge in points.items()
        }
        best = max(found, key=found.__getitem__)
        self.score("grid", best, "heldout", self.merging(points[best]))
        row = {"kind": "tuned", "name": name, "chosen": best, "validation": found[best]}
        self.ledger.get(key, lambda: row)

    def score(self, kind: str, name: str, split: str, build: Build) -> Row:
        """The row of what ``build`` makes: measured, unless the ledger has it."""

        def measured() -> Row:
            weights = {name: value.detach().float() for name, value in build().items()}
            accuracies = self._scorer().score(weights, split, self._tasks)
            return {"kind": kind, "name": name, "split": split, "tasks": accuracies}

        return self.ledger.get(f"{kind}/{name}/{split}", measured)


class Scorer:
    """Scores weights by the share of prompts that they answer right greedily.

    An answer is right exactly when every token of the right answer, and the end after it, is the
    most likely one given those before it. So it need not be generated.
    """

    def __init__(self, shape: Shape, effort: Effort) -> None:
        """Tokenize all prompts once; held-out ones decide nothing but the reported result."""
        self._tokenizer = new_tokenizer()
        self._model = new_model(self._tokenizer, shape).eval()
        drawn = {
            "validation": (validation_prompts, effort.validation_prompts),
            "heldout": (heldout_prompts, effort.heldout_prompts),
        }
        self._batches = {
            split: {name: self._tokenized(draw(task, n)) for name, task in TASKS.items()}
            for split, (draw, n) in drawn.items()
        }

    def score(
        self, weights: Weights, split: str, tasks: Sequence[str] = tuple(TASKS)
    ) -> dict[str, float]:
        """Accuracy on the ``validation`` or the ``heldout`` prompts, by task."""
        missing = self._model.load_state_dict(weights, strict=False).missing_keys
        # The head is the embedding, and stored once.
        assert set(missing) <= {"lm_head.weight"}, missing
        return {
            task: float(
                torch.cat([right(self._model, b) for b in self._batches[split][task]]).mean()
            )
            for task in tasks
        }

    def _tokenized(self, prompts: Sequence[str]) -> list[Batch]:
        """Batches of answered prompts, short ones first so that little is padded."""
        ordered = sorted(prompts, key=lambda prompt: len(prompt) + len(right_answer(prompt)))
        parts = (ordered[i : i + BATCH_SIZE] for i in range(0, len(ordered), BATCH_SIZE))
        return [
            answered_batch(self._tokenizer, part, [right_answer(p) for p in part]) for part in parts
        ]


@torch.inference_mode()
def right(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """1.0 where all labelled tokens of a row are the most likely ones, else 0.0: ``[rows]``.

    Logits are computed for labelled tokens alone: they are a good part of a small model's work. No
    padding mask: padding is on the right, where a causal model does not look.
    """
    labels = batch["labels"][:, 1:]
    counted = labels != IGNORED_LABEL
    hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
    wrong = torch.zeros(labels.shape, dtype=torch.bool)
    wrong[counted] = model.lm_head(hidden[counted]).argmax(dim=-1) != labels[counted]
    return (~wrong.any(dim=1)).double()


def statistics(base: Weights, agents: Mapping[str, Weights], epsilon: float) -> OverlapStatistics:
    """The counts of the whole model, as RAM+ takes them."""
    tensors = []
    for name, value in base.items():
        counts = count(value, [weights[name] for weights in agents.values()], epsilon=epsilon)
        rows = zip(agents, counts.overlap_degree, strict=True)
        agent_counts = tuple(AgentCounts(model=m, overlap_degree=tuple(r)) for m, r in rows)
        tensors.append(TensorOverlap(name=name, numel=value.numel(), agents=agent_counts))
    return OverlapStatistics(tensors=tuple(tensors))


def _overlap(bench: Bench, epsilon: float) -> Row:
    """Density, overlap degree and λ at RAM+'s defaults, by agent."""
    agents = {
        agent.model: {
            "density": agent.density,
            "overlap_degree": agent.overlap_degree,
            "rescale": agent.rescale(r=0.1, alpha=2.0),
        }
        for agent in statistics(bench.base, bench.agents, epsilon).agents
    }
    return {"kind": "overlap", "epsilon": epsilon, "agents": agents}


def collect(
    jobs: Sequence[Job], mixtures: Sequence[Job], seconds: Mapping[str, float], processes: int
) -> Row:
    """All that was measured, and with what, as one JSON document."""
    machine = {"processor": processor(), "processes": processes}
    return {
        "date": date.today().isoformat(),
        "machine": machine,
        "versions": versions(PACKAGES),
        "effort": asdict(jobs[0].base.effort),
        "seconds": {stage: round(value) for stage, value in seconds.items()},
        "conditions": {job.name: asdict(job.condition) for job in jobs if job.condition},
        "mixtures": {job.name: job.members for job in mixtures},
        "rows": [row for job in (*jobs, *mixtures) for row in _rows(job)],
    }


def _rows(job: Job) -> list[Row]:
    """The job's rows; of the grids' points on validation prompts only the best is kept."""
    where = {"condition": job.name, "seed": job.base.seed}
    return [
        where | _rounded(row)
        for row in job.ledger.rows.values()
        if (row["kind"], row.get("split")) != ("grid", "validation")
    ]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, DIGITS) if isinstance(value, float) and value > 10**-DIGITS else value
