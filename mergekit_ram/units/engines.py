"""Runs units: in this process, in several of this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mergekit_ram.errors import InputError, MissingExtraError, RamError, working
from mergekit_ram.units.job import MergeJob, Worker, run_unit

LOG = logging.getLogger("mergekit_ram")

CHILD = Path(__file__).with_name("child.py")

# A unit can be done again anywhere, so that Ray may repeat one that was lost with its node.
RAY_RETRIES = 3

# Does units of these numbers, and yields each that is done.
Engine = Callable[[Sequence[int]], Iterator[int]]


def engine_of(worker: Worker, units: int) -> AbstractContextManager[Engine]:
    """The engine of a job: this process, others of this machine, or a Ray cluster.

    Args:
        worker: this process.
        units: that there are to do.

    Raises:
        RamError: when it is used: a unit failed, or a worker was killed.
        MissingExtraError: Ray is not installed.
    """
    if worker.job.engine == "ray":
        return _on_ray(worker.job)
    if worker.job.workers > 1:
        return _in_processes(worker.job, min(worker.job.workers, units))
    return nullcontext(partial(_here, worker))


def _here(worker: Worker, numbers: Sequence[int]) -> Iterator[int]:
    """Do units one after the other; the disk flushes a shard while the next one is merged."""
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(lambda: None)
        for number in numbers:
            last = worker.run(number)
            before.result()
            before = pool.submit(last)
            yield number
        before.result()


@contextmanager
def _in_processes(job: MergeJob, workers: int) -> Iterator[Engine]:
    """Processes of this machine, which are killed at the end."""
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def do(number: int) -> int:
        child = free.get()
        try:
            _ask(child, job, number)
        finally:
            free.put(child)
        return number

    def engine(numbers: Sequence[int]) -> Iterator[int]:
        for future in as_completed([pool.submit(do, number) for number in numbers]):
            yield future.result()

    # The children end first, so that no thread waits for one.
    with ThreadPoolExecutor(workers) as pool, ExitStack() as children:
        for _ in range(workers):
            free.put(children.enter_context(_child()))
        yield engine


@contextmanager
def _child() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(CHILD), str(os.getpid())]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # What could not be sent to one that was killed cannot be sent now.
    with suppress(OSError), child:
        try:
            yield child
        finally:
            child.kill()


def _ask(child: subprocess.Popen[bytes], job: MergeJob, number: int) -> None:
    """Let a worker process do a unit, and wait for it."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(pickle.dumps((job, number)))
        child.stdin.flush()
        error = pickle.load(child.stdout)
    except (OSError, ValueError, EOFError, pickle.UnpicklingError):
        raise _was_killed(job) from None
    if error is not None:
        raise error


def serve() -> None:
    """Do units in a worker process: jobs come in, and errors or None go out."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints here is no reply
    with suppress(EOFError):
        while True:
            pickle.dump(attempt(*pickle.load(sys.stdin.buffer)), replies)
            replies.flush()


def attempt(job: MergeJob, number: int) -> RamError | None:
    """Do a unit in a worker process; the error, in one line, if it fails."""
    logging.basicConfig(level=logging.INFO if job.options.verbosity else logging.WARNING)
    try:
        with working(f"unit {number} of the merge into {job.out_path}"):
            run_unit(job, number)
    except RamError as error:
        return error
    return None


@contextmanager
def _on_ray(job: MergeJob) -> Iterator[Engine]:
    """The cluster that RAY_ADDRESS names, or one of its own, with ``job.workers`` at a time."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "`--engine ray` needs Ray, which is not installed: in a clone, pip install '.[cluster]'"
        ) from None

    def engine(numbers: Sequence[int]) -> Iterator[int]:
        waiting = list(reversed(numbers))
        running: dict[Any, int] = {}
        while waiting or running:
            while waiting and len(running) < job.workers:
                number = waiting.pop()
                running[task.remote(job, number)] = number
            (ready, *_), _ = ray.wait(list(running))
            try:
                error = ray.get(ready)
            except ray.exceptions.RayError as lost:
                LOG.debug("a unit was lost", exc_info=lost)
                raise _was_killed(job) from None
            if error is not None:
                raise error
            yield running.pop(ready)

    before = os.getcwd()
    try:
        # Ray takes the working folder's files for modules of its workers.
        os.chdir(sys.prefix)
        # Without an address Ray would join any cluster that a file in /tmp names.
        address = os.environ.get("RAY_ADDRESS") or "local"
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    finally:
        os.chdir(before)
    try:
        task = ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(attempt)
        yield engine
    finally:
        ray.shutdown()


def _was_killed(job: MergeJob) -> InputError:
    return InputError(
        f"a worker of the merge into {job.out_path} was killed (out of memory?), or ended with the "
        "error above. What is finished is kept: run the same command again, with fewer "
        "`--workers` or a smaller `--out-shard-size` if there is too little memory."
    )
