"""What is trained and measured at the small scale, each piece as a job with a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tasks import heldout_prompts, validation_prompts

from benchmarks.agents.merges.catalogue import BASE
from benchmarks.agents.running.ledger import Row, fingerprint
from benchmarks.agents.scores.likelihood import score_of
from benchmarks.agents.scores.regions import overlap_rows
from benchmarks.agents.small.merging import merged
from benchmarks.agents.small.model import SmallModel, Weights, on_device
from benchmarks.agents.small.tasks import SMALL_TASKS, SmallTask
from benchmarks.agents.small.training import SmallPace, reinforce, warm_up

WEIGHTS, RECORD = "model.safetensors", "training.json"
HELDOUT, VALIDATION = "heldout", "validation"
PROMPTS_BY_SPLIT = {HELDOUT: heldout_prompts, VALIDATION: validation_prompts}


@dataclass(frozen=True)
class SmallStudy:
    """One base and its three agents, and how they are measured."""

    output: Path
    device: str
    seed: int
    pace: SmallPace
    heldout: int
    validation: int

    def folder(self, model: str) -> Path:
        """Of the base or of an agent; other settings, another folder."""
        return self.output / "models" / f"{model}-{fingerprint(self.pace, self.seed)}"

    def prompts(self, split: str) -> int:
        """How many per task."""
        return self.heldout if split == HELDOUT else self.validation

    def is_made(self, model: str) -> bool:
        """Whether an earlier run finished it: the record is written last."""
        return (self.folder(model) / RECORD).is_file()

    def weights(self, model: str) -> Weights:
        """As they are stored, in bfloat16."""
        return load_file(self.folder(model) / WEIGHTS)

    def record(self, model: str) -> Row:
        """What was written down when it was trained."""
        made: Row = json.loads((self.folder(model) / RECORD).read_text())
        return made


@dataclass(frozen=True)
class TrainingJob:
    """The base, or the agent of a task."""

    study: SmallStudy
    model: str
    threads: int = 1

    def __str__(self) -> str:
        return self.model


@dataclass(frozen=True)
class MeasuringJob:
    """A model (its name) or a merge (its label) on the prompts of a split."""

    study: SmallStudy
    subject: str
    split: str

    @property
    def file(self) -> Path:
        """Where the row is, or will be."""
        study = self.study
        key = fingerprint(self.subject, study.folder(BASE).name, study.prompts(self.split))
        return study.output / "evaluations" / f"{self.split}-{key}.json"

    def row(self) -> Row:
        """What was measured."""
        measured: Row = json.loads(self.file.read_text())
        return measured

    def __str__(self) -> str:
        return f"{self.subject}, {self.split}"


def train(job: TrainingJob) -> None:
    """Train and save; to be called in a process of its own."""
    study, started = job.study, time.monotonic()
    torch.set_num_threads(job.threads)
    small = SmallModel(study.device)
    if job.model == BASE:
        history = warm_up(small, SMALL_TASKS, study.pace, study.seed)
    else:
        small.load(study.weights(BASE))
        seed = study.seed + 1 + list(SMALL_TASKS).index(job.model)
        history = reinforce(small, SMALL_TASKS[job.model], study.pace, seed)
    folder = study.folder(job.model)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(small.weights(), folder / WEIGHTS)
    made = asdict(history) | {"seconds": round(time.monotonic() - started, 1)}
    (folder / RECORD).write_text(json.dumps(made) + "\n")


def measure(job: MeasuringJob) -> None:
    """Measure and write down; to be called in a process of its own."""
    bench = _bench(job.study)
    started = time.monotonic()
    bench.small.load(bench.weights(job.subject))
    built = time.monotonic()
    row: dict[str, Any] = {"subject": job.subject, "split": job.split}
    row["tasks"] = {
        name: bench.answers(task, job.split, job.study) for name, task in SMALL_TASKS.items()
    }
    if job.split == HELDOUT:
        row["text_loss"] = bench.small.text_loss()
    row["seconds"] = {
        "merge": round(built - started, 2),
        "measure": round(time.monotonic() - built, 2),
    }
    job.file.parent.mkdir(parents=True, exist_ok=True)
    partial = job.file.with_suffix(".partial")
    partial.write_text(json.dumps(row) + "\n")
    partial.replace(job.file)


def overlaps(study: SmallStudy) -> Row:
    """Density, overlap degree and λ of every agent, as RAM+ takes them."""
    base = on_device(study.weights(BASE), "cpu")
    agents = {name: on_device(study.weights(name), "cpu") for name in SMALL_TASKS}
    return overlap_rows(base, agents)


class _Bench:
    """A model to load weights into, and the weights to merge."""

    def __init__(self, study: SmallStudy) -> None:
        self.small = SmallModel(study.device, torch.bfloat16)
        self._base = on_device(study.weights(BASE), study.device)
        self._agents = {n: on_device(study.weights(n), study.device) for n in SMALL_TASKS}
        self._seed = study.seed

    @torch.no_grad()
    def weights(self, subject: str) -> Weights:
        """Of a model, or of a merge: rounded to bfloat16, as models are stored."""
        models: Mapping[str, Weights] = {BASE: self._base, **self._agents}
        if subject in models:
            return models[subject]
        return merged(subject, self._base, self._agents, self._seed)

    def answers(self, task: SmallTask, split: str, study: SmallStudy) -> Row:
        """Shares of prompts answered right, and which ones are, greedily."""
        prompts = PROMPTS_BY_SPLIT[split](task, study.prompts(split))  # type: ignore[arg-type]
        likelihoods = list(self.small.likelihoods(task, prompts))
        right = torch.cat([each.greedy for each in likelihoods]).tolist()
        return asdict(score_of(likelihoods)) | {"right": "".join(str(int(r)) for r in right)}


@cache
def _bench(study: SmallStudy) -> _Bench:
    return _Bench(study)
