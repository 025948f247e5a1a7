"""Estimates the bytes, memory and time of a merge before it is begun."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mergekit_ram.models.groups import agent_places
from mergekit_ram.overlap import AgentCounts, OverlapStatistics, TensorOverlap
from mergekit_ram.units.cut import PlannedUnits, Unit
from mergekit_ram.units.folder import (
    MergedTensors,
    digest_of,
    folder_beside,
    settle,
    write_shard,
)
from mergekit_ram.units.job import (
    MergeJob,
    Worker,
    plan_of,
    without_trace,
)

# Seconds for which small tensors are measured, and large ones.
MEASURED_SECONDS = 0.5

# Bytes of all models' tensors of one name from which the time follows the bytes. Below it
# follows the number of tensors.
LARGE = 4_000_000

# Bytes of a worker without any tensor: Python, torch, mergekit.
PROCESS_BYTES = 500_000_000


def estimate(job: MergeJob) -> str:
    """Plan a merge, do some of its work, and say what all of it will take.

    Returns:
        The text that ``mergekit-ram merge --estimate`` prints.
    """
    with without_trace(job) as looking:
        plan = plan_of(looking)
        counting, merging = predicted_seconds(Worker(looking, plan))
    rows = [
        ("counting", _work(plan.counts, counting)),
        ("merging", _work(plan.shards, merging)),
        ("written", f"{_size(_written(plan))}, and as much free disk is needed"),
        ("memory", f"{_size(_memory(plan))} per worker at most"),
        ("time", f"about {_duration(counting + merging)} with one worker"),
    ]
    return "".join(f"{name:<10}{text}\n" for name, text in rows)


def predicted_seconds(worker: Worker) -> tuple[float, float]:
    """Seconds in which one worker counts and in which it merges, from some tensors of all sizes."""
    plan, tensors, counting = worker.plan, MergedTensors(), 0.0
    if plan.counts:
        counting = _timed(plan, worker.merges, worker.count)
        # No counts yet; those of one parameter do, since λ changes nothing about the time.
        agents = agent_places(plan.counter.merges)
        counts = tuple(AgentCounts(model=agent, overlap_degree=(1,)) for agent in agents)
        counted = TensorOverlap(name="", numel=len(agents), agents=counts)
        worker.statistics = OverlapStatistics(tensors=(counted,))
    merging = _timed(plan, plan.saves, lambda name: worker.merge(name, {}, tensors))
    with folder_beside(worker.job.out_path) as folder:
        started = time.perf_counter()
        path = Path(folder, "shard.safetensors")
        settle(write_shard(tensors.found, path), path)
        digest_of(tensors.found)
        writing = time.perf_counter() - started
    size = sum(tensor.nbytes for tensor in tensors.found.values())
    writing *= _written(plan) / max(size, 1)
    return counting, merging + writing


def _timed(plan: PlannedUnits, among: Iterable[str], work: Callable[[str], object]) -> float:
    """Seconds of some work on all tensors of a plan, measured on some of them."""
    sizes = plan.recorder.output.sizes
    names = sorted(name for name in among if name in sizes)
    random.Random(0).shuffle(names)
    work(names[0])  # the first call compiles
    small = [name for name in names if sizes[name].read < LARGE]
    large = [name for name in names if sizes[name].read >= LARGE]
    by_number = _seconds_each(small, work, lambda name: 1)
    by_size = _seconds_each(large, work, lambda name: sizes[name].read)
    return by_number * len(small) + by_size * sum(sizes[name].read for name in large)


def _seconds_each(
    names: Sequence[str], work: Callable[[str], object], amount: Callable[[str], int]
) -> float:
    """Seconds of work for one of an amount."""
    started, done = time.perf_counter(), 0
    for name in names:
        work(name)
        done += amount(name)
        if time.perf_counter() - started > MEASURED_SECONDS:
            break
    return (time.perf_counter() - started) / max(done, 1)


def _work(units: Sequence[Unit], seconds: float) -> str:
    read = sum(unit.read for unit in units)
    return f"{_size(read)} to read, {len(units)} units, about {_duration(seconds)}"


def _written(plan: PlannedUnits) -> int:
    return sum(unit.written for unit in plan.units)


def _memory(plan: PlannedUnits) -> int:
    largest_group = max((size.read for size in plan.recorder.output.sizes.values()), default=0)
    return PROCESS_BYTES + largest_group + max((unit.written for unit in plan.units), default=0)


def _size(number: float) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e8 else f"{number / 1e6:,.2f} MB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
