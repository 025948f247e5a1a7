"""Tasks and finalisers of one folder that end together, or step by step in a given order.

::

    python together.py rounds RECIPE OUT NUMBER
    python together.py steps RECIPE OUT

Every actor is a fork of this process, which has imported all that takes seconds.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from models import read_weights
from unit_merges import merge

from mergekit_ram.plan import folder as folders
from mergekit_ram.record.schema import WORK_FOLDER
from mergekit_ram.units import driver
from mergekit_ram.units import folder as work_folders
from mergekit_ram.units.folder import WorkFolder, unfinished_merge

REFUSALS = ("units that are needed first are not done", "no unfinished merge lies in it")


class Actor:
    """A command in a process of its own, which waits at every point until it is told to go on."""

    def __init__(self, recipe: Path, out: Path, options: Sequence[str], *, is_stepped: bool):
        arrived, self.arrived = os.pipe()[::-1], None
        go = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(go[1])
            if is_stepped:
                stop_at_points(lambda: (os.write(arrived[0], b"."), os.read(go[0], 1)))
            os._exit(run(recipe, out, options))
        os.close(arrived[0])
        os.close(go[0])
        self.arrived, self.go = arrived[1], go[1]

    def step(self) -> bool:
        """Wait until it is at a point, and let it go on; whether it was at one."""
        if not os.read(self.arrived, 1):
            return False
        os.write(self.go, b".")
        return True

    def ended(self) -> bool:
        """Wait for its end, and let it go on at all points before; whether it was successful."""
        while self.step():
            pass
        os.close(self.arrived)
        os.close(self.go)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1]) == 0


def run(recipe: Path, out: Path, options: Sequence[str]) -> int:
    """Run a command; 0 where it succeeds, or is a finaliser that came too early."""
    result = merge(recipe, out, *options)
    is_early = "--finalise" in options and any(said in result.output for said in REFUSALS)
    if result.exit_code and not is_early:
        print(options, result.output, result.exception, file=sys.stderr)
        return 1
    return 0


def stop_at_points(point: Callable[[], object]) -> None:
    """Let everything that others may notice wait for its turn."""

    def stopping(function: Callable[..., object]) -> Callable[..., object]:
        def stopped(*arguments: object, **named: object) -> object:
            point()
            return function(*arguments, **named)

        return stopped

    folders.time = type("Time", (), {"sleep": stopping(lambda _: None), "monotonic": lambda: 0.0})
    folders._remove_lock = stopping(folders._remove_lock)
    driver.lock_folder = stopping(driver.lock_folder)
    driver.remove_work = stopping(driver.remove_work)
    work_folders.remove_earlier_model = stopping(work_folders.remove_earlier_model)
    for name in ("begin", "enter"):
        setattr(WorkFolder, name, stopping(getattr(WorkFolder, name)))


def check_whole(recipe: Path, out: Path, expected: dict[str, torch.Tensor]) -> None:
    """Finalise if no actor has, and compare."""
    if not (out / "config.json").is_file():
        assert run(recipe, out, ["--units", "0:100"]) == 0
        assert run(recipe, out, ["--finalise"]) == 0
    written = read_weights(out)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    assert (out / "config.json").is_file()
    assert not list(out.glob(".merge*"))


def prepared(recipe: Path, out: Path) -> tuple[Path, int, dict[str, torch.Tensor]]:
    """A folder in which the last unit lacks, the number of units, and the finished weights."""
    begun = out.with_name("begun")
    assert run(recipe, begun, ["--units", "0:1"]) == 0
    units = len(unfinished_merge(begun).manifest.units)
    assert run(recipe, begun, ["--units", f"1:{units - 1}"]) == 0
    shutil.copytree(begun, out)
    assert run(recipe, out, []) == 0
    expected = read_weights(out)
    shutil.rmtree(out)
    return begun, units, expected


def rounds(recipe: Path, out: Path, number: int) -> None:
    """Rounds of two to four tasks and finalisers that end together."""
    begun, units, expected = prepared(recipe, out)
    chance = random.Random(1)
    last = ["--units", f"{units - 1}:{units}"]
    for _ in range(number):
        shutil.copytree(begun, out)
        some = [last, *chance.choices([last, ["--finalise"]], k=chance.randint(1, 3))]
        actors = [Actor(recipe, out, options, is_stepped=False) for options in some]
        ends = [actor.ended() for actor in actors]
        assert all(ends)
        check_whole(recipe, out, expected)
        shutil.rmtree(out)


def steps(recipe: Path, out: Path) -> None:
    """Every order of the first steps of a task and a finaliser, and of two tasks that begin."""
    begun, units, expected = prepared(recipe, out)
    first, last = ["--units", "0:1"], ["--units", f"{units - 1}:{units}"]
    for is_begun, commands in ((True, (last, ["--finalise"])), (False, (first, first))):
        for order in sorted(set(itertools.permutations([0, 0, 0, 1, 1, 1]))):
            if is_begun:
                shutil.copytree(begun, out)
            actors = [Actor(recipe, out, options, is_stepped=True) for options in commands]
            for turn in order:
                actors[turn].step()
            # Together from here on: one may wait for the other's lock.
            at_points = [True]
            while any(at_points):
                at_points = [actor.step() for actor in actors]
            ends = [actor.ended() for actor in actors]
            assert all(ends), order
            check_whole(recipe, out, expected)
            shutil.rmtree(out)


if __name__ == "__main__":
    what, recipe, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    assert WORK_FOLDER.startswith(".merge")
    if what == "rounds":
        rounds(recipe, out, int(sys.argv[4]))
    else:
        steps(recipe, out)
