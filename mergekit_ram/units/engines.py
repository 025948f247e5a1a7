"""Runs units: in this process, in several of this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mergekit_ram.errors import InputError, MissingExtraError, RamError
from mergekit_ram.units.job import MergeJob, Worker, run_unit

LOG = logging.getLogger("mergekit_ram")

CHILD = Path(__file__).with_name("child.py")

# A unit can be done again anywhere, so that Ray may repeat one that was lost with its node.
RAY_RETRIES = 3

# Is told the number of a unit that is done.
Seen = Callable[[int], None]


def run_here(worker: Worker, numbers: Sequence[int], seen: Seen) -> None:
    """Do units one after the other in this process.

    The disk flushes a shard while the next one is merged.
    """

    def end(last: Callable[[], None], number: int) -> None:
        last()
        seen(number)

    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(lambda: None)
        for number in numbers:
            last = worker.run(number)
            before.result()
            before = pool.submit(end, last, number)
        before.result()


def run_in_processes(job: MergeJob, numbers: Sequence[int], seen: Seen) -> None:
    """Do units in ``job.workers`` processes of this machine.

    Raises:
        RamError: a unit failed, or a worker was killed.
    """
    children = [_start() for _ in range(min(job.workers, len(numbers)))]
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def do(number: int) -> int:
        child = free.get()
        _ask(child, job, number)
        free.put(child)
        return number

    try:
        with ThreadPoolExecutor(len(children)) as pool:
            for child in children:
                free.put(child)
            try:
                for future in as_completed([pool.submit(do, number) for number in numbers]):
                    seen(future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in children:
                    child.kill()
                raise
    finally:
        for child in children:
            # What could not be sent to one that was killed cannot be sent now.
            with suppress(OSError), child:
                child.kill()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _ask(child: subprocess.Popen[bytes], job: MergeJob, number: int) -> None:
    """Let a worker process do a unit, and wait for it."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        pickle.dump((job, number), child.stdin)
        child.stdin.flush()
        error = pickle.load(child.stdout)
    except (OSError, EOFError, pickle.UnpicklingError):
        raise _was_killed(job) from None
    if error is not None:
        raise error


def serve() -> None:
    """Do units in a worker process: jobs come in, and errors or None go out."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints here is no reply
    logging.basicConfig()
    while True:
        try:
            job, number = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(attempt(job, number), replies)
        replies.flush()


def attempt(job: MergeJob, number: int) -> RamError | None:
    """Do a unit in a worker process; the error, in one line, if it fails."""
    try:
        run_unit(job, number)
    except RamError as error:
        return error
    except Exception as error:
        if job.options.verbosity > 1:
            LOG.warning("a worker failed", exc_info=error)
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        return InputError(
            f"a worker of the merge into {job.out_path} failed: {type(error).__name__}: "
            f"{lines[-1]}. What is finished is kept: run the same command again, and with -vv to "
            "see more."
        )
    return None


def run_on_ray(job: MergeJob, numbers: Sequence[int], seen: Seen) -> None:
    """Do units as tasks of a Ray cluster, ``job.workers`` at a time.

    Raises:
        RamError: a unit failed, or its worker was killed again and again.
        MissingExtraError: Ray is not installed.
    """
    with _connected() as ray:
        task = ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(attempt)
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
            seen(running.pop(ready))


@contextmanager
def _connected() -> Iterator[Any]:
    """Ray, connected to the cluster that RAY_ADDRESS names, or to one of its own here."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "`--engine ray` needs Ray, which is not installed: in a clone, pip install '.[cluster]'"
        ) from None
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
        yield ray
    finally:
        ray.shutdown()


def _was_killed(job: MergeJob) -> InputError:
    return InputError(
        f"a worker of the merge into {job.out_path} was killed (out of memory?), or ended with the "
        "error above. What is finished is kept: run the same command again, with fewer "
        "`--workers` or a smaller `--out-shard-size` if there is too little memory."
    )
