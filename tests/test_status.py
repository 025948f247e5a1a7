"""``mergekit-ram status``: versions and owners, and what a folder holds."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from models import Trio

from mergekit_ram.cli import main


def status(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["status", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def row(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}  ")]
    return line.removeprefix(name).strip()


def test_versions_and_owners_are_shown():
    text = status("--check")
    assert row(text, "mergekit") == "0.1.5"
    assert row(text, "numba").endswith(", compiled loops on")
    assert row(text, "autoload") == "on: `import torch` switches the plugin on"
    assert row(text, "ram") == "mergekit-ram (mergekit_ram.methods.RamMerge)"
    assert row(text, "ram_plus") == "mergekit-ram (mergekit_ram.methods.RamPlusMerge)"


def test_all_rows_are_in_line():
    lines = status().splitlines()
    name = max(lines, key=lambda line: len(line.split("  ")[0])).split("  ")[0]
    assert name == "ram_directions"
    width = len(name) + 2
    assert all(line[width - 2 : width] == "  " and line[width] != " " for line in lines)


@pytest.mark.parametrize(
    ("variable", "value", "owner"),
    [
        ("MERGEKIT_RAM_DISABLE", "1", "mergekit"),
        ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0", "mergekit-ram"),
    ],
)
def test_the_reason_for_being_off_is_shown(variable, value, owner, monkeypatch):
    monkeypatch.setenv(variable, value)
    text = status()
    assert row(text, "autoload").startswith(f"off: {variable}={value} is set")
    assert row(text, "ram") == owner


def test_status_says_whether_the_compiled_loops_are_on_and_why_not(monkeypatch):
    assert row(status(), "numba").endswith("; --check tries the compiled loops")
    monkeypatch.setenv("MERGEKIT_RAM_NATIVE", "0")
    off = row(status("--check"), "numba")
    assert off.endswith(", compiled loops off: switched off (MERGEKIT_RAM_NATIVE=0)")


def test_a_finished_merge_says_what_it_is(trio: Trio, tmp_path):
    trio.merge("ram_plus")
    merged = tmp_path / "merged"
    text = status(merged)
    assert row(text, "finished merge").startswith(f"{merged}, 20")
    assert row(text, "method") == "ram_plus"
    assert row(text, "base") == str(trio.base_path)
    for name in trio.agents:
        assert name in text
    assert "mergekit 0.1.5" in row(text, "versions")
    assert row(text, "weights") == "verified by size and a sample of the bytes: model.safetensors"
    (weights,) = merged.glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "model.safetensors has changed" in row(status(merged), "weights")
    weights.unlink()
    assert row(status(merged), "weights") == "not verified: not in this folder"


def test_a_folder_without_a_merge_says_so(tmp_path):
    text = row(status(tmp_path), "merge")
    assert text == f"none in {tmp_path}, neither unfinished nor finished (ram_overlap.json)"
