"""``mergekit-ram status``, each time in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STATUS = [sys.executable, "-m", "mergekit_ram.cli", "status"]


def status(*options: str, **environment: str) -> str:
    command = [*STATUS, *options]
    result = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return result.stdout


def row(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
    return line.split(maxsplit=1)[1]


def test_versions_and_owners_are_shown():
    text = status("--check")
    assert row(text, "mergekit") == "0.1.5"
    assert row(text, "numba").endswith(", compiled loops on")
    assert row(text, "autoload") == "on: `import torch` switches the plugin on"
    assert row(text, "ram") == "mergekit-ram (mergekit_ram.methods.RamMerge)"
    assert row(text, "ram_plus") == "mergekit-ram (mergekit_ram.methods.RamPlusMerge)"


@pytest.mark.parametrize(
    ("variable", "value", "reason", "owner"),
    [
        ("MERGEKIT_RAM_DISABLE", "1", "off: MERGEKIT_RAM_DISABLE=1 is set", "mergekit"),
        (
            "TORCH_DEVICE_BACKEND_AUTOLOAD",
            "0",
            "off: TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set",
            "mergekit-ram",
        ),
    ],
)
def test_the_reason_for_being_off_is_shown(variable, value, reason, owner):
    text = status(**{variable: value})
    assert row(text, "autoload").startswith(reason)
    assert row(text, "ram") == owner
    assert f"{variable}" in text


def test_status_says_whether_the_compiled_loops_are_on_and_why_not():
    known = row(status(), "numba")
    assert known.endswith(", compiled loops not switched off; --check tries them")
    off = row(status(MERGEKIT_RAM_NATIVE="0"), "numba")
    assert off.endswith(", compiled loops off: MERGEKIT_RAM_NATIVE=0 is set")
    off = row(status(NUMBA_DISABLE_JIT="1"), "numba")
    assert off.endswith("off: NUMBA_DISABLE_JIT=1 is set")
