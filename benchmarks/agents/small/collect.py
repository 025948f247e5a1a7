"""What a run of the small scale found, as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

import torch

from benchmarks.agents.merges.catalogue import BASE
from benchmarks.agents.running.machine import Row, processor, versions
from benchmarks.agents.scores.likelihood import mean_accuracy
from benchmarks.agents.small.merging import FIXED
from benchmarks.agents.small.study import (
    HELDOUT,
    VALIDATION,
    MeasuringJob,
    SmallStudy,
    overlaps,
)
from benchmarks.agents.small.tasks import SMALL_TASKS
from benchmarks.agents.small.training import WARM_UP_BATCH, WARM_UP_RATE

PACKAGES = ("mergekit", "torch", "transformers", "trl", "datasets", "fusion-bench")


def best(study: SmallStudy, labels: Sequence[str]) -> str:
    """The merge with the highest accuracy on validation prompts."""
    return max(
        labels, key=lambda label: mean_accuracy(MeasuringJob(study, label, VALIDATION).row())
    )


def collect(
    study: SmallStudy, chosen: Mapping[str, str], seconds: Mapping[str, float], processes: int
) -> Row:
    """Everything that was measured, how the models were made, and with what."""

    def row(subject: str, split: str = HELDOUT) -> Row:
        return MeasuringJob(study, subject, split).row()

    validated = FIXED | dict(chosen)
    return {
        "date": date.today().isoformat(),
        "machine": _machine(study.device) | {"processes": processes},
        "versions": versions(PACKAGES),
        "pace": asdict(study.pace) | {"warm_up_rate": WARM_UP_RATE, "warm_up_batch": WARM_UP_BATCH},
        "seed": study.seed,
        "prompts": {HELDOUT: study.heldout, VALIDATION: study.validation},
        "seconds": {stage: round(value, 1) for stage, value in seconds.items()},
        "training": {model: study.record(model) for model in (BASE, *SMALL_TASKS)},
        "overlaps": overlaps(study),
        "models": {model: row(model) for model in (BASE, *SMALL_TASKS)},
        "merges": {name: row(label) for name, label in validated.items()},
        "chosen": dict(chosen),
        "validation": {
            name: mean_accuracy(row(label, VALIDATION)) for name, label in validated.items()
        },
    }


def _machine(device: str) -> dict[str, Any]:
    if torch.device(device).type == "cuda":
        return {"processor": torch.cuda.get_device_name(device)}
    return {"processor": processor()}
