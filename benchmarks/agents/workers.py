"""Jobs in processes of one thread each: torch's threads are slow when they share cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

Job = TypeVar("Job")


def run(
    work: Callable[[Job], None], jobs: Sequence[Job], processes: int, title: str, log: Path
) -> None:
    """Do all jobs, with a bar; what they print goes to the log."""
    if not jobs:
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with (
        ProcessPoolExecutor(
            min(processes, len(jobs)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(log,),
        ) as pool,
        tqdm(total=len(jobs), desc=title, unit="job") as bar,
    ):
        pending = {pool.submit(work, job): str(job) for job in jobs}
        try:
            for future in as_completed(pending):
                future.result()
                bar.set_postfix_str(f"done: {pending[future]}", refresh=False)
                bar.update()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _start(log: Path) -> None:
    """Prepare a process: one thread, and its words where they disturb no bar."""
    log.parent.mkdir(parents=True, exist_ok=True)
    stream: TextIO = log.open("a", buffering=1)
    contextlib.redirect_stdout(stream).__enter__()
    contextlib.redirect_stderr(stream).__enter__()
    sys.stdout.flush()

    import torch

    torch.set_num_threads(1)
