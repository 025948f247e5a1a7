"""What lies in a work folder, and what a merge reads, is checked before it is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mergekit.config import MergeConfiguration
from mergekit.options import MergeOptions
from models import Trio, save_tokenizer
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from unit_merges import OPTIONS, assert_finished, merge

from mergekit_ram.cli import main
from mergekit_ram.record.schema import WORK_FOLDER
from mergekit_ram.units.folder import unfinished_merge
from mergekit_ram.units.manifest import input_states
from mergekit_ram.units.shards import Receipt, digest_of

Forgery = dict[str, Any]

FORGED: dict[str, Callable[[Forgery], object]] = {
    "of another plan": lambda r: r.update(plan="0" * 16),
    "of another unit": lambda r: r.update(unit=1),
    "a negative count": lambda r: degrees(r, lambda degree: [-1, *degree[1:]]),
    "more than there are": lambda r: degrees(r, lambda degree: [10**9, *degree[1:]]),
    "shared by none": lambda r: degrees(r, lambda degree: [degree[0], degree[1] + 1, degree[2]]),
    "of another size": lambda r: r["counts"][0][1].update(numel=1),
    "not counted": lambda r: r["counts"][0].__setitem__(1, None),
    "a tensor less": lambda r: r["counts"].pop(),
    "of other numbers of agents": lambda r: degrees(r, lambda degree: degree[:-1]),
    "a tensor more": lambda r: r["counts"].append(r["counts"][0]),
}


def degrees(receipt: Forgery, change: Callable[[list[int]], list[int]]) -> None:
    agent = receipt["counts"][0][1]["agents"][0]
    agent["overlap_degree"] = change(agent["overlap_degree"])


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_receipt_of_counts_is_not_believed(forgery, begun):
    work, unit, path = begun(0)
    assert work.receipt(unit) is not None
    receipt = json.loads(path.read_text())
    FORGED[forgery](receipt)
    text = json.dumps(receipt)
    with suppress(ValidationError):
        # With a digest of its own that is right, unless it is no receipt at all.
        text = Receipt.model_validate(receipt).sealed().model_dump_json()
    path.write_text(text)
    assert work.receipt(unit) is None


def test_a_shard_with_a_tensor_less_is_not_believed_with_its_own_receipt(begun):
    work, unit, path = begun(-1)
    assert work.lacking([unit]) == []
    shard = work.shard(unit.number)
    whole, tensors = shard.read_bytes(), load_file(shard)
    fewer = {name: tensors[name].clone() for name in unit.tensors[1:]}
    save_file(fewer, shard)
    receipt = Receipt.model_validate_json(path.read_bytes())
    forged = receipt.model_copy(update={"digest": digest_of(fewer)}).sealed()
    path.write_text(forged.model_dump_json())
    assert work.receipt(unit) is not None
    assert work.lacking([unit]) == [unit]
    shard.write_bytes(whole)


def test_a_damaged_receipt_is_not_believed(begun):
    work, unit, path = begun(-1)
    path.write_text(path.read_text().replace('"digest":"', '"digest":"0'))
    assert work.receipt(unit) is None


@pytest.fixture(scope="module")
def all_done(plus, tmp_path_factory) -> Path:
    """A folder in which all units are done."""
    out = tmp_path_factory.mktemp("done") / "out"
    result = merge(plus.recipe, out, "--units", "0:100")
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def begun(all_done):
    """The work folder, a unit of it, and its receipt, which is whole again afterwards."""
    kept: dict[Path, bytes] = {}

    def of(number: int):
        work = unfinished_merge(all_done)
        unit = work.manifest.units[number]
        path = all_done / WORK_FOLDER / f"unit-{unit.number:05d}-{work.manifest.digest}.json"
        kept[path] = path.read_bytes()
        return work, unit, path

    yield of
    for path, content in kept.items():
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["merge.json", "receipt"])
@pytest.mark.parametrize("kind", ["fifo", "endless"])
def test_nothing_is_waited_for_but_regular_files(all_done, begun, name, kind):
    _, _, path = begun(0)
    place = path if name == "receipt" else all_done / WORK_FOLDER / name
    kept = place.read_bytes()
    place.unlink()
    try:
        if kind == "fifo":
            os.mkfifo(place)
        else:
            place.symlink_to("/dev/zero")
        result = CliRunner().invoke(main, ["status", str(all_done)])
    finally:
        place.unlink()
        place.write_bytes(kept)
    assert isinstance(result.exception, SystemExit | None)
    if name == "receipt":
        assert "0 of 1 units" in result.output


def test_a_tokenizer_that_changed_between_two_tries_is_refused(trio: Trio, tmp_path):
    for folder in (Path(trio.base_path), *map(Path, trio.agents)):
        save_tokenizer(folder)
    config = trio.config("ram", tokenizer={"source": "base"})
    recipe, out = tmp_path / "recipe.yml", tmp_path / "out"
    recipe.write_text(yaml.safe_dump(config))
    assert merge(recipe, out, "--units", "0:1").exit_code == 0
    agent = Path(next(iter(trio.agents)))
    save_tokenizer(agent, [f"<{number}>" for number in reversed(range(96))])
    result = merge(recipe, out)
    assert result.exit_code == 1
    assert f"of another file {agent / 'tokenizer'}" in result.output


def test_a_record_that_changed_between_two_tries_is_refused(plus, tmp_path):
    record, recipe, out = tmp_path / "counts.json", tmp_path / "recipe.yml", tmp_path / "out"
    text = (plus.folder / "ram_overlap.json").read_text()
    record.write_text(text)
    recipe.write_text(f"{plus.recipe.read_text()}parameters:\n  statistics: {record}\n")
    assert merge(recipe, out, "--units", "0:1").exit_code == 0
    record.write_text(text + "\n")
    result = merge(recipe, out)
    assert result.exit_code == 1
    assert f"of another file {record}" in result.output


def test_a_tokenizer_of_the_hub_is_told_by_its_content(plus, tmp_path, monkeypatch):
    root = tmp_path / "hub" / "models--some--tokenizer"
    file = root / "snapshots" / ("0" * 39 + "1") / "tokenizer.json"
    for path, text in ((root / "refs" / "main", file.parent.name), (file, "{}")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    recipe = yaml.safe_load(plus.recipe.read_text()) | {"tokenizer_source": "some/tokenizer"}
    config = MergeConfiguration.model_validate(recipe)
    before = input_states(config, MergeOptions(), None)
    file.write_text("{ }")
    after = input_states(config, MergeOptions(), None)
    different = [name for name in before if before[name] != after[name]]
    assert before.keys() == after.keys()
    assert different == ["some/tokenizer/tokenizer.json"]


PLACES = (".mergekit_ram.lock", "mergekit_config.yml", "model.safetensors.index.json")


@pytest.mark.parametrize("kind", ["fifo", "endless"])
@pytest.mark.parametrize("name", PLACES)
def test_a_file_that_never_ends_stops_no_command(plus, tmp_path, name, kind):
    out = tmp_path / "out"
    assert merge(plus.recipe, out).exit_code == 0
    (out / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(out / name)
    else:
        (out / name).symlink_to("/dev/zero")
    result = merge(plus.recipe, out, "--finalise")
    assert result.exit_code == (name in PLACES[:2]), result.output
    assert len(result.output.strip().splitlines()) <= 1
    if name == PLACES[2]:
        assert merge(plus.recipe, out).exit_code == 0


def test_a_lock_that_is_a_link_to_another_file_leaves_it_as_it_was(plus, tmp_path):
    (tmp_path / "out").mkdir()
    other = tmp_path / "other"
    other.write_text("of somebody")
    (tmp_path / "out" / ".mergekit_ram.lock").symlink_to(other)
    result = merge(plus.recipe, tmp_path / "out")
    assert result.exit_code == 1
    assert ".mergekit_ram.lock is no regular file" in result.output
    assert other.read_text() == "of somebody"


def test_a_work_folder_on_another_disk_is_refused_at_the_start(plus, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (out / WORK_FOLDER).symlink_to(tmp_path / "elsewhere")
    result = merge(plus.recipe, out)
    assert result.exit_code == 1
    assert "is a link or another disk" in result.output


def test_an_output_below_a_work_folder_is_refused(plus, all_done):
    result = merge(plus.recipe, all_done / WORK_FOLDER / "out")
    assert result.exit_code == 1
    assert "lies in the work folder of an unfinished merge" in result.output


SHADOWS = ("joblib", "warnings", "yaml", "torch", "mergekit_ram", "pickle")


def test_two_workers_write_the_same_and_take_no_module_from_the_working_folder(plus, tmp_path):
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working folder')\n")
    command = Path(sys.executable).with_name("mergekit-ram")
    done = subprocess.run(
        [command, "merge", plus.recipe, tmp_path / "out", *OPTIONS, "--workers", "2"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a file of the working folder" not in done.stdout + done.stderr
    assert_finished(tmp_path / "out", plus.weights)
