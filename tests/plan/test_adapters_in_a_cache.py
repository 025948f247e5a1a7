"""Adapters that were merged before: used where they are of these very files, else made anew."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from families import Family, assert_weights
from mergekit.common import ModelReference
from models import Weights, forget_loaded_models, read_weights
from safetensors.torch import load_file, save_file
from test_references import adapter

from mergekit_ram.models import adapters

CACHE = "--lora-merge-cache"


def models(family: Family) -> list[dict[str, str]]:
    return [{"model": str(family.path("coder"))}, {"model": "./base+./lo"}]


def merged_here(family: Family, *options: str) -> Weights:
    forget_loaded_models()
    return family.merge(*options, models=models(family))


def fresh(family: Family, *options: str) -> Weights:
    """The same merge with a cache that holds nothing."""
    return merged_here(family, *options, CACHE, str(family.path("another cache")))


def rewrite(folder: Path, factor: float) -> None:
    file = folder / "adapter_model.safetensors"
    weights = {name: tensor * factor for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})


def test_two_projects_with_the_same_names_share_no_adapter(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    families = [Family(tmp_path / name) for name in ("one", "two")]
    written = []
    for family, factor in zip(families, (1, -3), strict=True):
        monkeypatch.chdir(family.folder)
        rewrite(adapter(family, "lo"), factor)
        written.append(merged_here(family, CACHE, str(cache)))
    entries = {entry: entry.stat().st_ino for entry in cache.iterdir()}
    assert len(entries) == 2
    for family, found in zip(families, written, strict=True):
        monkeypatch.chdir(family.folder)
        assert_weights(found, fresh(family))
        assert_weights(merged_here(family, CACHE, str(cache)), found)
    assert any(not torch.equal(tensor, written[1][name]) for name, tensor in written[0].items())
    assert {entry: entry.stat().st_ino for entry in cache.iterdir()} == entries


@pytest.mark.parametrize("keeps_its_time", [False, True])
def test_another_adapter_in_the_place_of_one_is_noticed(tmp_path, monkeypatch, keeps_its_time):
    family = Family(tmp_path)
    monkeypatch.chdir(tmp_path)
    file = adapter(family, "lo") / "adapter_model.safetensors"
    merged_here(family, CACHE, str(tmp_path / "cache"))
    time = file.stat().st_mtime_ns - (0 if keeps_its_time else 10**12)
    rewrite(file.parent, -3)
    os.utime(file, ns=(time, time))
    assert_weights(merged_here(family, CACHE, str(tmp_path / "cache")), fresh(family))


def test_an_adapter_is_kept_per_dtype(tmp_path, monkeypatch):
    family = Family(tmp_path)
    monkeypatch.chdir(tmp_path)
    adapter(family, "lo")
    cache = tmp_path / "cache"
    for _ in range(2):
        for dtype in ("bfloat16", "float32"):
            options = ("--lora-merge-dtype", dtype)
            written = merged_here(family, *options, CACHE, str(cache))
            shutil.rmtree(tmp_path / "another cache", ignore_errors=True)
            assert_weights(written, fresh(family, *options))
    dtypes = [next(iter(read_weights(entry).values())).dtype for entry in cache.iterdir()]
    assert sorted(map(str, dtypes)) == ["torch.bfloat16", "torch.float32"]


def test_what_mergekit_left_unfinished_is_not_taken_for_a_model(tmp_path, monkeypatch):
    family = Family(tmp_path)
    monkeypatch.chdir(tmp_path)
    adapter(family, "lo")
    reference = ModelReference.parse("./base+./lo")
    left = f"{reference.model._unique_id()}_{reference.lora._unique_id()}"
    (tmp_path / "cache" / left).mkdir(parents=True)
    assert_weights(merged_here(family, CACHE, str(tmp_path / "cache")), fresh(family))


def test_a_cache_that_another_process_fills_meanwhile_is_used(tmp_path, monkeypatch):
    family = Family(tmp_path)
    monkeypatch.chdir(tmp_path)
    adapter(family, "lo")
    cache, other = tmp_path / "cache", tmp_path / "other"
    written = merged_here(family, CACHE, str(other))
    (made,) = other.iterdir()
    merge = adapters._merge

    def merge_and_meet(*arguments):
        merge(*arguments)
        shutil.copytree(made, cache / made.name)

    monkeypatch.setattr(adapters, "_merge", merge_and_meet)
    assert_weights(merged_here(family, CACHE, str(cache)), written)
    assert list(cache.iterdir()) == [cache / made.name]


def test_a_dtype_for_adapters_that_does_not_exist_is_refused(tmp_path):
    family = Family(tmp_path)
    model = f"{family.path('base')}+{adapter(family, 'lo')}"
    cache = tmp_path / "cache"
    line = family.refusal(
        CACHE, str(cache), "--lora-merge-dtype", "bf16", models=[{"model": model}]
    )
    assert line == (
        "Error: `--lora-merge-dtype bf16` is no dtype that mergekit knows, as bfloat16, float16, "
        "float32, float64 are: did you mean 'bfloat16'?"
    )
    assert not cache.exists()


def test_a_damaged_entry_is_made_anew(tmp_path, monkeypatch, caplog):
    family, cache = Family(tmp_path / "family"), tmp_path / "cache"
    monkeypatch.chdir(family.folder)
    adapter(family, "lo")
    found = merged_here(family, CACHE, str(cache))
    (entry,) = cache.iterdir()
    file = entry / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    assert_weights(merged_here(family, CACHE, str(cache)), found)
    assert f"{entry} is damaged, and is made anew" in caplog.text
    assert [*cache.iterdir()] == [entry]
