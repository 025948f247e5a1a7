"""``inspect FOLDER`` says when the record is not that of the weights beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from models import Trio, merge_yaml, read_weights, write_weights
from records import record_of, unfolded

from mergekit_ram.cli import main
from mergekit_ram.record.schema import RECORD_NAME

SAID = "This record is not that of the weights beside it: "


def inspected(folder: Path) -> str:
    result = CliRunner().invoke(main, ["inspect", str(folder)])
    assert result.exit_code == 0, result.output
    return unfolded(result.output)


@pytest.fixture
def merged(trio: Trio) -> Path:
    trio.merge("ram", "--out-shard-size", "30K")
    return trio.folder / "merged"


def test_a_record_of_the_weights_beside_it_is_shown_as_it_is(merged: Path):
    assert SAID not in inspected(merged)
    names = [file.name for file in record_of(merged).written]
    assert names == sorted(file.name for file in merged.glob("*.safetensors"))
    moved = merged.rename(merged.parent / "moved")
    assert SAID not in inspected(moved)


def test_a_record_without_weights_beside_it_is_shown_as_it_is(merged: Path, tmp_path):
    (tmp_path / "alone").mkdir()
    shutil.copy(merged / RECORD_NAME, tmp_path / "alone")
    assert SAID not in inspected(tmp_path / "alone")


def test_weights_of_another_merge_are_told(trio: Trio):
    trio.merge("ram")
    merged = trio.folder / "merged"
    merge_yaml(trio.config("linear", parameters={"weight": 1.0}), merged)
    assert f"{SAID}model.safetensors has changed." in inspected(merged)
    result = CliRunner().invoke(main, ["inspect", str(merged), "--strict"])
    assert result.exit_code == 3


@pytest.mark.parametrize("what", ["one value", "a shard is gone", "one file", "broken"])
def test_weights_that_were_changed_are_told(merged: Path, trio: Trio, what):
    shard = sorted(merged.glob("*.safetensors"))[-1]
    weights = read_weights(merged)
    if what == "one value":
        text = bytearray(shard.read_bytes())
        text[-1] ^= 1
        shard.write_bytes(text)
    elif what == "a shard is gone":
        shard.unlink()
    elif what == "broken":
        shard.write_bytes(b"")
    else:
        for file in merged.glob("*.safetensors*"):
            file.unlink()
        write_weights(merged, {name: torch.clone(w) for name, w in weights.items()}, merged)
    said = inspected(merged)
    assert SAID in said
    words = {"a shard is gone": f"{shard.name} is missing", "one file": "model.safetensors is not"}
    assert words.get(what, f"{shard.name} has changed") in said
