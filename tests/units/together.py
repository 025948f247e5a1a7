"""Rounds of tasks and finalisers of one folder that end together.

::

    python together.py RECIPE OUT NUMBER

Each is a fork of this process, which has imported all that takes seconds.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from models import read_weights
from unit_merges import merge

from mergekit_ram.units.folder import unfinished_merge

REFUSALS = ("units that are needed first are not done", "no unfinished merge lies in it")


def started(recipe: Path, out: Path, options: Sequence[str]) -> int:
    """The process of a command, a fork of this one."""
    process = os.fork()
    if process == 0:
        os._exit(run(recipe, out, options))
    return process


def run(recipe: Path, out: Path, options: Sequence[str]) -> int:
    """Run a command; 0 where it succeeds, or is a finaliser that came too early."""
    result = merge(recipe, out, *options)
    is_early = "--finalise" in options and any(said in result.output for said in REFUSALS)
    if result.exit_code and not is_early:
        print(options, result.output, result.exception, file=sys.stderr)
        return 1
    return 0


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
        processes = [started(recipe, out, options) for options in some]
        ends = [os.waitpid(process, 0)[1] for process in processes]
        assert not any(ends)
        check_whole(recipe, out, expected)
        shutil.rmtree(out)


if __name__ == "__main__":
    rounds(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
