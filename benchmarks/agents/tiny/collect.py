"""What a run of the tiny scale found, as one JSON document."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from benchmarks.agents.running.machine import Row, processor, versions
from benchmarks.agents.tiny import models
from benchmarks.agents.tiny.mixtures import MixtureJob
from benchmarks.agents.tiny.study import StudyJob

PACKAGES = (
    *("mergekit-ram", "mergekit", "torch", "transformers"),
    *("trl", "datasets", "fusion-bench"),
)
DIGITS = 4


def collect(
    jobs: Sequence[StudyJob],
    mixtures: Sequence[MixtureJob],
    seconds: dict[str, float],
    processes: int,
) -> Row:
    """Everything that the jobs have measured, how their agents were made, and with what."""
    machine = {"system": platform.system(), "processor": processor(), "processes": processes}
    return {
        "date": date.today().isoformat(),
        "machine": machine,
        "versions": versions(PACKAGES),
        "effort": asdict(jobs[0].base.effort),
        "seconds": {stage: round(value) for stage, value in seconds.items()},
        "conditions": {job.condition.name: asdict(job.condition) for job in jobs},
        "mixtures": {job.mixture.name: job.mixture.members for job in mixtures},
        "training": [_training(job) for job in jobs],
        "rows": [
            *(row for job in jobs for row in _rows(job, job.condition.name)),
            *(row for job in mixtures for row in _rows(job, job.mixture.name)),
        ],
    }


def _rows(job: StudyJob | MixtureJob, condition: str) -> list[Row]:
    """The job's rows; of the grids' points on validation prompts only the best is kept."""
    where = {"condition": condition, "seed": job.base.seed}
    return [
        where | _rounded(row)
        for row in job.ledger.rows.values()
        if (row["kind"], row.get("split")) != ("grid", "validation")
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
