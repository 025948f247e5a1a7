"""Of many tensors a merge of ours takes no more steps than any other of mergekit's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mergekit.graph import TaskHandle
from mergekit.io import LazyTensorLoader
from mergekit.io.tasks import LoaderCache
from models import Trio, merge_yaml, read_weights

from mergekit_ram.merges.shards import IndexedLoader


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
    assert {type(loader._inner) for loader in LoaderCache.loaders.values()} == {IndexedLoader}


@pytest.fixture
def loader(trio: Trio) -> LazyTensorLoader:
    merge_yaml(trio.config("ram"), trio.folder / "shards", "--out-shard-size", "10K")
    assert len(list((trio.folder / "shards").glob("*.safetensors"))) > 2
    return LazyTensorLoader.from_disk(str(trio.folder / "shards"))


def test_every_tensor_is_that_of_mergekits_loader(loader, trio: Trio):
    weights = read_weights(trio.folder / "shards")
    ours = IndexedLoader(loader.index)
    for name in [*sorted(weights), *sorted(weights, reverse=True)]:
        assert torch.equal(ours.get_tensor(name), weights[name])
    ours.flush()
    assert torch.equal(ours.get_tensor("model.norm.weight"), weights["model.norm.weight"])


def test_what_no_index_names_is_answered_as_mergekit_answers(loader, trio: Trio):
    ours = IndexedLoader(loader.index)
    for one in (loader, ours):
        assert one.get_tensor("nothing", raise_on_missing=False) is None
        with pytest.raises(KeyError, match="nothing"):
            one.get_tensor("nothing")
        norm = one.get_tensor("nothing", aliases=["model.norm.weight"])
        assert torch.equal(norm, read_weights(trio.folder / "shards")["model.norm.weight"])
    assert torch.equal(
        ours.get_tensor("model.embed_tokens.weight"), loader.get_tensor("model.embed_tokens.weight")
    )


def test_a_file_that_lacks_what_its_index_promises_is_named(loader, trio: Trio):
    loader.index.tensor_paths["model.norm.weight"] = "gone.safetensors"
    with pytest.raises(FileNotFoundError, match="gone"):
        IndexedLoader(loader.index).get_tensor("model.norm.weight")
    assert Path(loader.index.base_path) == trio.folder / "shards"
