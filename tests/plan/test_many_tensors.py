"""Of many tensors a merge of ours takes no more steps than any other of mergekit's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mergekit.graph import TaskHandle
from mergekit.io import LazyTensorLoader
from mergekit.io.tasks import LoaderCache
from models import Trio, merge_yaml, read_weights

from mergekit_ram.errors import InputError
from mergekit_ram.models.checkpoints import Source, open_checkpoint
from mergekit_ram.models.loader import NamedLoader


def comparisons(trio: Trio, method: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a merge compares one task with another."""
    times = 0
    equal = TaskHandle.__eq__

    def counted(self: TaskHandle, other: object) -> bool:
        nonlocal times
        times += 1
        return bool(equal(self, other))

    with monkeypatch.context() as patch:
        patch.setattr(TaskHandle, "__eq__", counted)
        # Replacing it takes the hash away as well.
        patch.setattr(TaskHandle, "__hash__", lambda self: self._index)
        config = trio.config(method, parameters={"weight": 1.0})
        merge_yaml(config, trio.folder / method)
    return times


def test_tasks_are_compared_less_often_than_by_linear(tmp_path, monkeypatch):
    trio = Trio(tmp_path, num_hidden_layers=8)
    linear, ram, plus = (
        comparisons(trio, method, monkeypatch) for method in ("linear", "ram", "ram_plus")
    )
    assert ram < 0.8 * linear
    assert plus < 0.8 * linear


def test_our_merges_alone_load_by_the_index(trio: Trio):
    linear = trio.config("linear", parameters={"weight": 1.0})
    merge_yaml(linear, trio.folder / "linear")
    assert {type(loader) for loader in LoaderCache.loaders.values()} == {LazyTensorLoader}
    trio.merge("ram_plus")
    assert {type(loader) for loader in LoaderCache.loaders.values()} == {NamedLoader}


@pytest.fixture
def sharded(trio: Trio) -> Path:
    folder = trio.folder / "shards"
    merge_yaml(trio.config("ram"), folder, "--out-shard-size", "10K")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def named(folder: Path) -> NamedLoader:
    checkpoint = open_checkpoint(str(folder), "it")
    return NamedLoader("it", checkpoint, False, {f"my.{n}": Source(n) for n in checkpoint.headers})


def test_every_tensor_is_that_of_its_file(sharded: Path):
    weights, loader = read_weights(sharded), named(sharded)
    for name in [*sorted(weights), *sorted(weights, reverse=True)]:
        assert torch.equal(loader.get_tensor(f"my.{name}"), weights[name])
    loader.flush()
    norm = loader.get_tensor("nothing", aliases=["my.model.norm.weight"])
    assert torch.equal(norm, weights["model.norm.weight"])


def test_what_no_index_names_is_answered_as_mergekit_answers(sharded: Path):
    for loader in (LazyTensorLoader.from_disk(str(sharded)), named(sharded)):
        assert loader.get_tensor("nothing", raise_on_missing=False) is None
        with pytest.raises(KeyError, match="nothing"):
            loader.get_tensor("nothing")


def test_a_file_that_has_gone_is_named_with_its_model(sharded: Path):
    loader = named(sharded)
    loader.index.tensor_paths["my.model.norm.weight"] = "gone.safetensors"
    with pytest.raises(InputError, match=r"model it: tensor model.norm.weight in .*/gone.safet"):
        loader.get_tensor("my.model.norm.weight")
