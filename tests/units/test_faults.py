"""What a merge by units survives: each fault, then the same command again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
from observed import told
from processes import OURS
from unit_merges import OPTIONS, assert_finished, merge

from mergekit_ram.plan import folder
from mergekit_ram.plan.folder import lock_folder
from mergekit_ram.record.schema import WORK_FOLDER

LOOK_EVERY = 0.05
"""Seconds between two looks at the processes."""

COMMAND = (sys.executable, *OURS, "merge")


def start(recipe: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, str(recipe), str(out), *OPTIONS, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Processes that do units."""
    try:
        children = psutil.Process(process.pid).children()
        return [child for child in children if "child.py" in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def test_a_killed_worker_is_one_line_and_the_next_run_finishes(plus, tmp_path):
    out = tmp_path / "out"
    process = start(plus.recipe, out, "--workers", "2")
    workers: list[psutil.Process] = []
    while process.poll() is None and not workers:
        time.sleep(LOOK_EVERY)
        workers = workers_of(process)
    workers[0].send_signal(signal.SIGKILL)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 1, output
    assert "was killed (out of memory?)" in output
    assert "Traceback" not in output
    assert not (out / "config.json").exists()
    result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)


def test_workers_end_with_a_killed_driver(plus, tmp_path):
    process = start(plus.recipe, tmp_path / "out", "--workers", "2")
    workers: list[psutil.Process] = []
    while process.poll() is None and len(workers) < 2:
        time.sleep(LOOK_EVERY)
        workers = workers_of(process)
    process.kill()
    # They hold the other ends of its pipes.
    process.communicate(timeout=60)
    assert len(workers) == 2
    _, left = psutil.wait_procs(workers, timeout=30)
    assert not left


FULL = """
import resource, signal, sys
from pathlib import Path
from unit_merges import merge
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (7000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
result = merge(Path(sys.argv[1]), Path(sys.argv[2]))
print(result.output)
sys.exit(result.exit_code)
"""


def test_a_full_disk_is_one_line_and_with_room_the_next_run_finishes(plus, tmp_path):
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(plus.recipe), str(out)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    line = done.stdout.strip().splitlines()[-1]
    assert line.startswith(f"Error: output folder {out}: writing unit-0000"), line
    assert "File too large" in line
    assert "Errno" not in line
    assert "Make room or choose another folder" in line
    assert "Traceback" not in done.stdout + done.stderr
    assert not (out / "config.json").exists()
    result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)


def test_a_second_driver_is_refused(plus, tmp_path):
    out = tmp_path / "out"
    with lock_folder(str(out)):
        result = merge(plus.recipe, out)
    assert result.exit_code == 1
    assert f"output folder {out}: another merge is writing to it" in result.output


class Clock:
    """The time of one that waits for a lock, which is released after some seconds."""

    def __init__(self, lock: ExitStack):
        self.now, self.lock = 0.0, lock

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 4:
            self.lock.close()


def test_one_that_waits_for_a_lock_says_after_two_seconds_who_holds_it(
    plus, tmp_path, monkeypatch, caplog
):
    out = tmp_path / "out"
    clock = Clock(lock_folder(str(out)))
    monkeypatch.setattr(folder, "time", clock)
    warn = folder.LOG.warning
    told_at: list[float] = []
    monkeypatch.setattr(
        folder.LOG, "warning", lambda *line: (told_at.append(clock.now), warn(*line))
    )
    result = merge(plus.recipe, out, "--units", "0:1")
    assert result.exit_code == 0, result.output
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert told(caplog)[0] == f"output folder {out}: waiting for another merge ({holder})"
    assert 2 < told_at[0] < 2.5


def test_a_damaged_manifest_is_named(plus, tmp_path):
    out = tmp_path / "out"
    (out / WORK_FOLDER).mkdir(parents=True)
    (out / WORK_FOLDER / "merge.json").write_text("{")
    result = merge(plus.recipe, out)
    assert result.exit_code == 1
    assert "merge.json is damaged" in result.output
    assert "--restart" in result.output
    result = merge(plus.recipe, out, "--restart")
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)


def test_damaged_receipts_are_made_anew(plus, tmp_path):
    out = tmp_path / "out"
    assert merge(plus.recipe, out, "--units", "0:3").exit_code == 0
    next((out / WORK_FOLDER).glob("unit-00000-*.json")).write_text("")
    result = merge(plus.recipe, out)
    assert result.exit_code == 0, result.output
    assert_finished(out, plus.weights)
