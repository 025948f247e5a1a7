"""Runs units: in this process, in several of this machine, or on a Ray cluster.

joblib drives the units in both latter cases, by its own processes or by Ray's. Receipts in the
work folder tell how far they are, whichever machine they are done on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

import joblib
from joblib.externals.loky.process_executor import BrokenProcessPool

from mergekit_ram.errors import InputError, MissingExtraError, RamError
from mergekit_ram.units import early
from mergekit_ram.units.manifest import WorkFolder
from mergekit_ram.units.work import Bench, Job, run_unit

LOG = logging.getLogger("mergekit_ram")

RAY_RETRIES = {"max_restarts": 16, "max_task_retries": 3}
"""A unit can be done again anywhere, so that Ray may repeat what a lost node was at."""

LOOK_EVERY = 0.5
"""Seconds between two looks for new receipts."""

Seen = Callable[[int], None]
"""Is told the number of a unit that is done."""


class Engine(str, Enum):
    """Where workers come from."""

    LOCAL = "local"
    RAY = "ray"


def run_here(bench: Bench, numbers: Sequence[int], seen: Seen) -> None:
    """Do units one after the other in this process.

    The disk flushes a shard while the next one is merged.
    """
    with ThreadPoolExecutor(1) as pool:
        before: Future[None] | None = None
        for number in numbers:
            last = bench.run(number)
            if before is not None:
                before.result()
            before = pool.submit(lambda last=last: seen(last().unit))  # type: ignore[misc]
        if before is not None:
            before.result()


def run_apart(job: Job, numbers: Sequence[int], workers: int, engine: Engine, seen: Seen) -> None:
    """Do units in other processes, in whatever order they are done.

    Raises:
        InputError: a worker was killed.
        MissingExtraError: Ray is not installed.
    """
    with (
        early.used_by_joblib(),
        _backend(engine),
        _watched(WorkFolder(job.out_path, job.plan), numbers, seen),
    ):
        try:
            # Batches of several would leave workers idle at the end of a short queue.
            pool = joblib.Parallel(n_jobs=workers, batch_size=1)
            pool(joblib.delayed(run_unit)(job, number) for number in numbers)
        except BrokenProcessPool:
            raise InputError(
                f"a worker of the merge into {job.out_path} was killed, perhaps for want of "
                "memory, or ended as it says above. What is finished is kept: run the same "
                "command again, with fewer `--workers` or a smaller `--out-shard-size` if there is "
                "too little memory."
            ) from None
        except RamError:
            raise
        except Exception as error:
            raise _of_worker(error, job) from error


def _of_worker(error: Exception, job: Job) -> RamError:
    """What a worker raised, in one line; Ray wraps it into a class of its own."""
    cause = getattr(error, "cause", error)
    if isinstance(cause, RamError):
        return cause
    LOG.debug("a worker failed", exc_info=error)
    lines = [line for line in str(cause).splitlines() if line.strip()] or [repr(cause)]
    return InputError(
        f"a worker of the merge into {job.out_path} failed: {type(cause).__name__}: {lines[-1]}. "
        "What is finished is kept: run the same command again, and with -vv to see more."
    )


@contextmanager
def _watched(work: WorkFolder, numbers: Sequence[int], seen: Seen) -> Iterator[None]:
    """Tell of units whose receipts have come, until the block ends."""
    pending = list(numbers)
    ended = threading.Event()

    def look() -> None:
        for number in [number for number in pending if work.receipt(number) is not None]:
            pending.remove(number)
            seen(number)

    def keep_looking() -> None:
        while not ended.wait(LOOK_EVERY):
            look()

    watcher = threading.Thread(target=keep_looking, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        look()


def _backend(engine: Engine) -> AbstractContextManager[object]:
    if engine is Engine.LOCAL:
        return joblib.parallel_config(backend="loky")  # type: ignore[no-any-return]
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise MissingExtraError(
            "`--engine ray` needs Ray, which is not installed: pip install 'mergekit-ram[cluster]'"
        ) from None
    if not ray.is_initialized():
        # RAY_ADDRESS names a cluster; without it Ray starts one of this machine.
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False)
    register_ray()
    return joblib.parallel_config(backend="ray", ray_remote_args=RAY_RETRIES)  # type: ignore[no-any-return]
