"""Two commands on one folder, in every order of the steps that the other may notice.

Each command is a thread that stops at every such step until it is its turn. mergekit's part, which
plans the merge and writes the configuration, is done once, before.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mergekit.options import MergeOptions
from models import Weights, read_weights
from observed import contents

from mergekit_ram.errors import RamError
from mergekit_ram.plan import folder as locks
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.record.schema import WORK_FOLDER
from mergekit_ram.units import driver, shards
from mergekit_ram.units import folder as folders
from mergekit_ram.units.folder import WorkFolder, is_unfinished
from mergekit_ram.units.job import MergeJob, Worker, read_job
from mergekit_ram.units.shards import MergedTensors

OPTIONS = MergeOptions(copy_tokenizer=False, out_shard_size=30_000, quiet=True)

REFUSALS = (
    "another merge is writing to it",
    "no unfinished merge lies in it",
    "units that are needed first are not done",
)


class Command(threading.Thread):
    """A merge that goes from one of its steps to the next when it is told to."""

    def __init__(self, job: MergeJob):
        super().__init__(daemon=True)
        self.job = job
        self.is_waiting = self.has_unlocked = self.has_ended = False
        self.error: BaseException | None = None
        self._turn, self._arrived = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        self._turn.acquire()
        try:
            driver.merge(self.job)
        except BaseException as error:
            self.error = error
        self.has_unlocked = self.has_ended = True
        self._arrived.release()

    def step(self) -> None:
        """Go on to the next step, or to the end."""
        self.is_waiting = False
        self._turn.release()
        assert self._arrived.acquire(timeout=60)

    def stop(self, *, is_waiting: bool) -> None:
        """Wait for the next turn."""
        self.is_waiting = is_waiting
        self._arrived.release()
        self._turn.acquire()


def point(*, is_waiting: bool = False) -> None:
    thread = threading.current_thread()
    if isinstance(thread, Command):
        thread.stop(is_waiting=is_waiting)


def stopping(function: Callable[..., Any]) -> Callable[..., Any]:
    def stopped(*arguments: Any, **named: Any) -> Any:
        point()
        return function(*arguments, **named)

    return stopped


class Waiting:
    """The clock of those that wait for a lock."""

    monotonic = staticmethod(lambda: 0.0)

    @staticmethod
    def sleep(_: float) -> None:
        point(is_waiting=True)


@pytest.fixture(scope="module")
def planned(plus, tmp_path_factory) -> Worker:
    """The merge, planned, counted and merged once."""
    worker = Worker(read_job(plus.recipe, tmp_path_factory.mktemp("steps") / "out", OPTIONS))
    counted = {name: worker.count(name) for name in worker.merges}

    def merge(name: str, counts: object, tensors: MergedTensors) -> None:
        tensors.save_tensor(name, plus.weights[name])

    worker.count, worker.merge = counted.__getitem__, merge
    return worker


@pytest.fixture
def stepped(planned, monkeypatch) -> None:
    """Commands that stop at their steps, and leave mergekit's part out."""
    running = threading.local()

    def worker_of(job: MergeJob, targets: object = None) -> Worker:
        worker = copy.copy(planned)
        worker.__dict__.pop("statistics", None)
        worker.counter = copy.copy(planned.counter)
        worker.counter.statistics = None
        worker.recorder = copy.copy(planned.recorder)
        worker.recorder.__dict__.pop("record", None)
        worker.recorder.counter = worker.counter
        worker.job = replace(job, plan=planned.job.plan)
        worker.work = WorkFolder(job.out_path, planned.work.manifest)
        return worker

    @contextmanager
    def executed_by(run: Callable[..., Iterator[Any]]) -> Iterator[None]:
        running.execute = run
        yield

    def run_merge(config: object, out_path: str, *_: object) -> None:
        assert not list(running.execute([]))
        Path(out_path, "config.json").write_text("{}")
        Path(out_path, driver.CONFIGURATION).write_text(planned.job.configuration)

    def engine_of(worker: Worker, units: int) -> Any:
        return nullcontext(lambda numbers: (worker.run(n)() or n for n in numbers))

    monkeypatch.setattr(shards.os, "fsync", lambda file: None)
    monkeypatch.setattr(driver, "Worker", worker_of)
    monkeypatch.setattr(driver.host, "executed_by", executed_by)
    monkeypatch.setattr(driver, "run_merge", run_merge)
    monkeypatch.setattr(driver, "engine_of", engine_of)
    monkeypatch.setattr(locks, "time", Waiting)
    monkeypatch.setattr(locks, "_remove_lock", stopping(locks._remove_lock))
    monkeypatch.setattr(driver, "lock_folder", stopping(driver.lock_folder))
    monkeypatch.setattr(driver, "remove_work", stopping(driver.remove_work))
    monkeypatch.setattr(folders, "remove_earlier_model", stopping(folders.remove_earlier_model))
    monkeypatch.setattr(MergeRecorder, "write", stopping(MergeRecorder.write))
    for name in ("begin", "enter"):
        monkeypatch.setattr(WorkFolder, name, stopping(getattr(WorkFolder, name)))


def steps_of(commands: Sequence[Command], turns: Sequence[int]) -> list[list[int]]:
    """Run two commands to their ends: those that had a turn to give, in the order of the turns.

    Args:
        commands: to run.
        turns: of the first steps; after them the first one that can has its turn.

    Returns:
        For every step the command that had its turn, and then the others that might have.
    """
    taken: list[list[int]] = []
    # One that waits for a lock is asked again when another one has let go of its own.
    stuck: set[int] = set()
    while not all(command.has_ended for command in commands):
        able = [n for n, c in enumerate(commands) if not c.has_ended and n not in stuck]
        assert able, "each waits for the other"
        turn = turns[len(taken)] if len(taken) < len(turns) else able[0]
        taken.append([turn, *(other for other in able if other != turn)])
        commands[turn].step()
        if commands[turn].is_waiting:
            stuck.add(turn)
        elif commands[turn].has_unlocked:
            stuck.clear()
    return taken


COMMANDS: dict[str, dict[str, Any]] = {
    "first task": {"units": range(1)},
    "last task": {"units": range(1, 100)},
    "finaliser": {"finalise": True},
    "whole merge": {},
    "restart": {"units": range(1), "restart": True},
}
AT_THE_START = ("first task+first task", "first task+whole merge", "first task+restart")
WITHOUT_THE_LAST = (
    "last task+last task",
    "last task+finaliser",
    "last task+whole merge",
    "last task+restart",
    "finaliser+whole merge",
)
ALL_DONE = ("finaliser+finaliser", "finaliser+first task", "finaliser+restart")


@pytest.mark.parametrize("pair", AT_THE_START)
def test_two_that_begin_lose_nothing_in_any_order(pair, plus, planned, stepped, tmp_path):
    job = replace(planned.job, plan="")
    in_every_order(pair, job, tmp_path / "nothing", tmp_path / "out", plus.weights)


@pytest.mark.parametrize("pair", [*WITHOUT_THE_LAST, *ALL_DONE])
def test_two_that_end_lose_nothing_in_any_order(pair, plus, planned, stepped, tmp_path):
    begun, job = tmp_path / "begun", replace(planned.job, plan="")
    driver.merge(replace(job, out_path=str(begun), units=range(100)))
    last = planned.work.manifest.units[-1].number
    for path in (begun / WORK_FOLDER).glob(f"unit-{last:05d}-*"):
        if pair not in ALL_DONE:
            path.unlink()
    in_every_order(pair, job, begun, tmp_path / "out", plus.weights)


def in_every_order(pair: str, job: MergeJob, before: Path, out: Path, expected: Weights) -> None:
    """Run two commands on a folder in every order, and finish the merge after each."""
    left: list[list[int]] = [[]]
    seen: set[frozenset[tuple[str, bytes]]] = set()
    while left:
        turns = left.pop()
        if before.exists():
            shutil.copytree(before, out)
        chosen = [COMMANDS[name] for name in pair.split("+")]
        commands = [Command(replace(job, out_path=str(out), **options)) for options in chosen]
        for command in commands:
            command.start()
        taken = steps_of(commands, turns)
        for depth in range(len(turns), len(taken)):
            so_far = [turn for turn, *_ in taken[:depth]]
            left += [[*so_far, other] for other in taken[depth][1:]]
        for command in commands:
            is_refused = isinstance(command.error, RamError) and any(
                said in str(command.error) for said in REFUSALS
            )
            assert command.error is None or is_refused, (taken, command.error)
        state = frozenset(contents(out).items())
        if state not in seen:
            seen.add(state)
            check_whole(replace(job, out_path=str(out)), expected)
        shutil.rmtree(out, ignore_errors=True)


def check_whole(job: MergeJob, expected: Weights) -> None:
    """The model is whole, or the next try makes it so."""
    out = Path(job.out_path)
    if is_unfinished(out) or not (out / "config.json").exists():
        driver.merge(job)
    written = read_weights(out)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in written)
    assert (out / "ram_overlap.json").is_file()
    assert not list(out.glob(".merge*"))
