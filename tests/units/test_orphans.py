"""A worker ends with its driver, on platforms that say when a process ends and on others."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORKER = """
import os, subprocess, sys, time
from mergekit_ram.units import orphans
if sys.argv[1] == "asks":
    vars(os).pop("pidfd_open", None)
orphans.LOOK_EVERY = 0.05
driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
orphans.end_with(driver.pid)
time.sleep(0.3)
print("at work", flush=True)
driver.communicate(b"\\n")
time.sleep(60)
print("still there")
"""


@pytest.mark.parametrize("way", ["is told", "asks"])
def test_a_worker_ends_once_its_driver_has(way):
    done = subprocess.run(
        [sys.executable, "-c", WORKER, way], capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "at work\n", done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("way", ["is told", "asks"])
def test_a_driver_that_is_gone_already_is_noticed(way):
    code = WORKER.replace("orphans.end_with(driver.pid)", "driver.communicate(b'x')").replace(
        "time.sleep(60)", "orphans.end_with(driver.pid); time.sleep(60)"
    )
    code = code.replace('driver.communicate(b"\\n")\n', "")
    done = subprocess.run(
        [sys.executable, "-c", code, way], capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "at work\n", done.stderr
    assert done.returncode == 1
