"""Jobs in processes of one thread each: torch's threads are slow when they share cores."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

Job = TypeVar("Job")

SECONDS, LOG = "seconds.json", "log.txt"


class Workers:
    """Processes that are kept from one stage to the next; what they print goes to a log.

    ``seconds`` says how long each stage has taken, earlier runs in the same folder included.
    """

    def __init__(self, processes: int, output: Path) -> None:
        """Start nothing yet: processes start with the first job."""
        output.mkdir(parents=True, exist_ok=True)
        self._file = output / SECONDS
        kept = self._file.read_text() if self._file.is_file() else "{}"
        self.seconds: dict[str, float] = json.loads(kept)
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._pool = ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(output / LOG,),
        )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, work: Callable[[Job], None], jobs: Sequence[Job], title: str) -> None:
        """Do all jobs of a stage, with a bar."""
        started = time.monotonic()
        pending = {self._pool.submit(work, job): str(job) for job in jobs}
        with tqdm(total=len(jobs), desc=title, unit="job", disable=not jobs) as bar:
            for future in as_completed(pending):
                future.result()
                bar.set_postfix_str(f"done: {pending[future]}", refresh=False)
                bar.update()
        self.seconds[title] = self.seconds.get(title, 0.0) + time.monotonic() - started
        self._file.write_text(json.dumps(self.seconds))


def _start(log: Path) -> None:
    """Prepare a process: one thread, and its words where they disturb no bar."""
    log.parent.mkdir(parents=True, exist_ok=True)
    stream: TextIO = log.open("a", buffering=1)
    contextlib.redirect_stdout(stream).__enter__()
    contextlib.redirect_stderr(stream).__enter__()
    sys.stdout.flush()

    import torch

    torch.set_num_threads(1)
