"""Jobs in processes, a ledger of what is finished, and the machine and packages they ran with."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

Job = TypeVar("Job")
Row = dict[str, Any]

FINGERPRINT_LENGTH = 10
SECONDS, LOG = "seconds.json", "log.txt"


def fingerprint(*settings: Any) -> str:
    """A name for settings: dataclasses and JSON values. Other settings get another name."""
    text = json.dumps(settings, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_LENGTH]


class Ledger:
    """An append-only file of rows, each under a key of its own, so that a run can resume."""

    def __init__(self, file: Path) -> None:
        """Read the rows of an earlier run; a line that was cut off is dropped."""
        self.rows: dict[str, Row] = {}
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        whole, _, torn = (file.read_text() if file.exists() else "").rpartition("\n")
        if torn:
            file.write_text(whole + "\n")
        for line in whole.splitlines():
            entry = json.loads(line)
            self.rows[entry["key"]] = entry["row"]

    def get(self, key: str, measure: Callable[[], Row]) -> Row:
        """The row of a key, measured and written down unless it is there."""
        if key not in self.rows:
            self.rows[key] = measure()
            with self._file.open("a") as out:
                out.write(json.dumps({"key": key, "row": self.rows[key]}) + "\n")
        return self.rows[key]


class Workers:
    """Processes of one thread each, kept from one stage to the next; their output goes to a log.

    torch's threads are slow when they share cores. ``seconds`` says how long each stage has taken,
    earlier runs in the same folder included.
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
        """Do all jobs of a stage, with a progress bar."""
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
    """Prepare a process: one thread, and its output in the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    stream: TextIO = log.open("a", buffering=1)
    contextlib.redirect_stdout(stream).__enter__()
    contextlib.redirect_stderr(stream).__enter__()

    import torch

    torch.set_num_threads(1)


def versions(packages: Iterable[str]) -> Row:
    """Of Python and of packages."""
    return {"python": platform.python_version()} | {p: version(p) for p in packages}


def processor() -> str:
    """The model's name where Linux tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def listed(settings: Mapping[str, Any]) -> str:
    """Names and values; numbers without needless digits."""
    return ", ".join(
        f"{name} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in settings.items()
    )
