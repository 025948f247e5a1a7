"""Estimates the bytes, memory and time of a merge before it is begun."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from mergekit_ram.models.groups import agent_places
from mergekit_ram.overlap import AgentCounts, OverlapStatistics, TensorOverlap
from mergekit_ram.units.job import MergeJob, Worker, without_trace
from mergekit_ram.units.manifest import Unit
from mergekit_ram.units.shards import MergedTensors, digest_of, settle, write_shard

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
        worker = Worker(looking)
        counting, merging = predicted_seconds(worker)
    counts, shards = worker.work.units("count"), worker.work.units("shard")
    written = sum(unit.written for unit in shards)
    largest_tensor = max(size.read for size in worker.recorder.output.sizes.values())
    largest_shard = max(unit.written for unit in shards)
    memory = PROCESS_BYTES + largest_tensor + largest_shard
    return (
        f"counting  {_work(counts, counting)}\n"
        f"merging   {_work(shards, merging)}\n"
        f"written   {_size(written)}, and as much free disk is needed\n"
        f"memory    {_size(memory)} per worker at most\n"
        f"time      about {_duration(counting + merging)} with one worker\n"
    )


def predicted_seconds(worker: Worker) -> tuple[float, float]:
    """Seconds in which one worker counts and in which it merges, from some tensors of all sizes."""
    counting, tensors = 0.0, MergedTensors()
    if worker.work.units("count"):
        counting = _timed(worker, worker.merges, worker.count)
        # No counts yet; those of one parameter do, since λ changes nothing about the time.
        agents = agent_places(worker.counter.merges)
        counts = tuple(AgentCounts(model=agent, overlap_degree=(1,)) for agent in agents)
        counted = TensorOverlap(name="", numel=len(agents), agents=counts)
        worker.statistics = OverlapStatistics(tensors=(counted,))
    merging = _timed(worker, worker.saves, lambda name: worker.merge(name, {}, tensors))
    started = time.perf_counter()
    path = Path(worker.job.out_path, "shard.safetensors")
    settle(write_shard(tensors.found, path), path)
    digest_of(tensors.found)
    writing = time.perf_counter() - started
    size = sum(tensor.nbytes for tensor in tensors.found.values())
    return counting, merging + writing * worker.recorder.output.size / max(size, 1)


def _timed(worker: Worker, among: Iterable[str], work: Callable[[str], object]) -> float:
    """Seconds of some work on all tensors of a plan, measured on some of them."""
    sizes = worker.recorder.output.sizes
    names = sorted(name for name in among if name in sizes)
    random.Random(0).shuffle(names)
    work(names[0])  # the first call compiles
    small = {name: 1 for name in names if sizes[name].read < LARGE}
    large = {name: sizes[name].read for name in names if name not in small}
    return _seconds(small, work) + _seconds(large, work)


def _seconds(amounts: Mapping[str, int], work: Callable[[str], object]) -> float:
    """Seconds of work on all tensors; they follow the amounts."""
    started, done, spent = time.perf_counter(), 0, 0.0
    for name, amount in amounts.items():
        work(name)
        done, spent = done + amount, time.perf_counter() - started
        if spent > MEASURED_SECONDS:
            break
    return spent * sum(amounts.values()) / max(done, 1)


def _work(units: Sequence[Unit], seconds: float) -> str:
    read = sum(unit.read for unit in units)
    return f"{_size(read)} to read, {len(units)} units, about {_duration(seconds)}"


def _size(number: float) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e8 else f"{number / 1e6:,.2f} MB"


def _duration(seconds: float) -> str:
    return f"{timedelta(seconds=round(seconds))} h:mm:ss"
