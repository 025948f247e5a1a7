"""Tasks and finalisers of one folder, in whatever order they come."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

ROUNDS = os.environ.get("MERGEKIT_RAM_TEST_ROUNDS", "10")
"""How often tasks and finalisers end together; a hundred before a release."""


def together(recipe: Path, out: Path, *arguments: str) -> None:
    script, what, *more = TESTS / "units" / "together.py", *arguments
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script, what, recipe, out, *more],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_rounds_that_end_together_lose_no_model(plus, tmp_path):
    together(plus.recipe, tmp_path / "out", "rounds", ROUNDS)


def test_every_order_of_steps_ends_in_the_whole_model(plus, tmp_path):
    together(plus.recipe, tmp_path / "out", "steps")
