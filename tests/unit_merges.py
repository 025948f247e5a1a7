"""Runs of ``mergekit-ram merge`` in this process and in others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from click.testing import CliRunner, Result
from models import Weights, forget_loaded_models, read_weights

from mergekit_ram.record.schema import WORK_FOLDER

OPTIONS = ("--no-copy-tokenizer", "--out-shard-size", "8K", "--quiet")


def merge(recipe: Path, out: Path, *options: str) -> Result:
    """Run the command in this process."""
    from mergekit_ram.cli.merge import command

    forget_loaded_models()
    return CliRunner().invoke(command, [str(recipe), str(out), *OPTIONS, *options])


@contextmanager
def changed(weights: Path) -> Iterator[None]:
    """Within it one bit of a checkpoint's file is another one."""
    before = weights.read_bytes()
    other = bytearray(before)
    other[-2] ^= 1
    weights.write_bytes(other)
    try:
        yield
    finally:
        weights.write_bytes(before)


def assert_finished(out: Path, expected: Weights) -> None:
    """The whole model is there, byte for byte, and nothing else."""
    written = read_weights(out)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    assert (out / "config.json").is_file()
    assert (out / "ram_overlap.json").is_file()
    assert not (out / WORK_FOLDER).exists()
    assert not list(out.rglob("*.part"))


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from unit_merges import merge, OPTIONS
import mergekit_ram.cli.merge
recipe, out, tries, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)

def attempt(seconds):
    child = os.fork()
    if child == 0:
        result = merge(recipe, out)
        os._exit(0 if result.exit_code == 0 else 1)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

import shutil
started = time.perf_counter()
assert attempt(None) == 0
whole = time.perf_counter() - started
shutil.rmtree(out)
finished = killed = 0
for number in range(tries):
    code = attempt(chance.uniform(0.2, 1.0) * whole)
    assert code in (0, -signal.SIGKILL), code
    killed += code != 0
    finished += code == 0
    if (out / "config.json").exists() and (out / ".mergekit-ram").exists() is False:
        shutil.rmtree(out)
assert attempt(None) == 0
print(f"killed {killed}")
"""


def killed_at_random(recipe: Path, out: Path, tries: int, seed: int) -> str:
    """Try a merge again and again in one process, each try killed at a random moment."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(recipe), str(out), str(tries), str(seed)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]
