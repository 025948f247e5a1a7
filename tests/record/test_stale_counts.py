"""Counts are used again where the models' contents are those that were counted, and it is said."""

from __future__ import annotations

import json
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from models import Trio, merge_yaml, read_weights, run_yaml, write_weights
from records import record_of
from safetensors.torch import save_file

from mergekit_ram.record.contents import WHOLE, file_record
from mergekit_ram.record.schema import RECORD_NAME, AgentRecord

Weights = dict[str, torch.Tensor]


def reusing(trio: Trio, **parameters: Any) -> dict[str, Any]:
    given = {"statistics": str(trio.folder / "counts" / RECORD_NAME), **parameters}
    return trio.config("ram_plus", parameters=given)


def refused(trio: Trio) -> str:
    result = run_yaml(reusing(trio), trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert not (trio.folder / "out").exists()
    return result.output.splitlines()[-1]


def train_on(folder: Path, **changed: torch.Tensor) -> None:
    """Other weights in the same file, of the same names, shapes and dtypes."""
    size = (folder / "model.safetensors").stat().st_size
    write_weights(folder, read_weights(folder) | changed, folder)
    assert (folder / "model.safetensors").stat().st_size == size


@pytest.mark.parametrize("name", ["coder", "base"])
def test_a_model_that_was_trained_on_in_its_folder_is_refused(trio: Trio, name):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    key = "model.layers.0.mlp.up_proj.weight"
    weights = read_weights(trio.folder / name)[key]
    train_on(trio.folder / name, **{key: torch.where(weights > 0, weights * 1.01, weights)})
    assert re.fullmatch(
        rf"Error: statistics {trio.folder / 'counts' / RECORD_NAME}: they are not those of this "
        rf"merge: model {trio.folder / name}, model.safetensors, contents was \w+, and is \w+ now. "
        "Leave `statistics` out and the merge counts anew.",
        refused(trio),
    )


def test_the_same_contents_in_new_files_are_taken(trio: Trio):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    for path in (trio.base_path, *trio.agents):
        train_on(Path(path))
    merge_yaml(reusing(trio), trio.folder / "again")


def test_pickled_models_are_looked_into_too(trio: Trio):
    tool = trio.folder / "tool"
    weights = read_weights(tool)
    (tool / "model.safetensors").unlink()
    torch.save(weights, tool / "pytorch_model.bin")
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    merge_yaml(reusing(trio), trio.folder / "again")
    weights["model.norm.weight"][-1] += 1
    torch.save(weights, tool / "pytorch_model.bin")
    assert f"model {tool}, pytorch_model.bin, contents was " in refused(trio)


def test_record_and_card_say_where_counts_are_from(trio: Trio):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    merge_yaml(reusing(trio, r=0.3), trio.folder / "again")
    path = str(trio.folder / "counts" / RECORD_NAME)
    assert record_of(trio.folder / "counts").counts_from is None
    assert record_of(trio.folder / "again").counts_from == path
    cards = [(trio.folder / name / "README.md").read_text() for name in ("counts", "again")]
    said = "The counts were taken before this merge, of the same models."
    assert [said in " ".join(card.split()) for card in cards] == [False, True]


def test_counts_that_lack_an_agent_are_refused(trio: Trio):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    path = trio.folder / "counts" / RECORD_NAME
    record = json.loads(path.read_text())
    # Nobody changed this tensor, and one agent has no counts of it.
    tensor = next(t for t in record["tensors"] if t["name"] == "model.norm.weight")
    first = tensor["agents"].pop(0)
    for agent in tensor["agents"]:
        agent["overlap_degree"] = [0, 0]
    for agent in record["agents"]:
        agent |= counted(agent["model"], record)
    for layer in record["layers"]:
        layer["change"] *= layer["name"] != "model.norm"
    path.write_text(json.dumps(record))
    said = refused(trio)
    assert f"tensor model.norm.weight, weight of {first['model']} is not in them" in said


def counted(model: str, record: dict[str, Any]) -> dict[str, Any]:
    """Let an agent's sums fit the tensors again."""
    own = [
        a["overlap_degree"] for t in record["tensors"] for a in t["agents"] if a["model"] == model
    ]
    degree = tuple(map(sum, zip_longest(*own, fillvalue=0)))
    fields = {"weight": 1.0, "rescale": 1.0, "clipped": False, "parameters": record["parameters"]}
    whole = AgentRecord(model=model, overlap_degree=degree, **fields).model_dump(mode="json")
    return {name: whole[name] for name in ("overlap_degree", *AgentRecord.model_computed_fields)}


@pytest.mark.parametrize("place", ["first", "last", "some"])
@pytest.mark.parametrize("is_safetensors", [True, False])
def test_a_sample_of_every_tensor_is_looked_at_with_both_ends(tmp_path, place, is_safetensors):
    size = 40 * WHOLE
    weights = {"small": torch.zeros(5), "large": torch.zeros(size, dtype=torch.bfloat16)}
    path = tmp_path / ("w.safetensors" if is_safetensors else "w.bin")

    def digest() -> str:
        if is_safetensors:
            save_file(weights, path)
        else:
            torch.save(weights, path)
        return file_record(path, "model").contents

    before = digest()
    assert digest() == before
    changed = {"first": slice(1), "last": slice(size - 1, size), "some": slice(0, size, 100)}
    weights["large"][changed[place]] += 1
    assert digest() != before


def test_every_byte_of_a_small_tensor_is_looked_at(tmp_path):
    found = set()
    for position in range(0, WHOLE // 4, 500):
        weights = {"w": torch.zeros(WHOLE // 4)}
        weights["w"][position] = 1
        save_file(weights, tmp_path / "w.safetensors")
        found.add(file_record(tmp_path / "w.safetensors", "model").contents)
    assert len(found) == len(range(0, WHOLE // 4, 500))
