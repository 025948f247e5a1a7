"""Tasks and finalisers of one folder that end together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

ROUNDS = os.environ.get("MERGEKIT_RAM_TEST_ROUNDS", "10")
"""How often tasks and finalisers end together; a hundred before a release."""


def test_rounds_that_end_together_lose_no_model(plus, tmp_path):
    done = subprocess.run(
        [sys.executable, TESTS / "units" / "together.py", plus.recipe, tmp_path / "out", ROUNDS],
        env=os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
