"""A record's tensors are written in columns and read as objects; version 1 wrote objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from models import Trio
from records import record_of

from mergekit_ram.cli import main
from mergekit_ram.record.columns import TensorAgent, TensorColumns, TensorRecord, tensors_of
from mergekit_ram.record.schema import RECORD_NAME, read_record


def as_version_1(record: dict[str, Any], tensors: tuple[TensorRecord, ...]) -> dict[str, Any]:
    """The same record as the version before wrote it."""
    old = record | {"schema_version": 1}
    old["tensors"] = [json.loads(tensor.model_dump_json()) for tensor in tensors]
    del old["counts_from"], old["written"]
    old["models"] = [
        {
            **model,
            "files": [{k: v for k, v in f.items() if k != "contents"} for f in model["files"]],
        }
        for model in old["models"]
    ]
    return old


@pytest.fixture
def merged(trio: Trio) -> Path:
    trio.merge("ram_plus")
    return trio.folder / "merged"


def test_tensors_take_a_few_bytes_each(merged: Path):
    record = json.loads((merged / RECORD_NAME).read_text())
    tensors = record["tensors"]
    assert record["schema_version"] == 2
    assert len(tensors["name"]) == len(tensors["numel"]) == len(record_of(merged).tensors)
    assert tensors["agents"][0]["weight"] == 1.0
    # A name, a digest, and ten numbers.
    assert len(json.dumps(tensors)) / len(tensors["name"]) < 250


def test_version_1_is_read_and_shown(merged: Path, tmp_path):
    new = record_of(merged)
    text = (merged / RECORD_NAME).read_text()
    old = as_version_1(json.loads(text), new.tensors)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / RECORD_NAME).write_text(json.dumps(old))
    read = read_record(tmp_path / "old" / RECORD_NAME)
    assert read.tensors == new.tensors
    assert read.agents == new.agents
    assert read.statistics() == new.statistics()
    shown = [
        CliRunner().invoke(main, ["inspect", str(folder)]).output
        for folder in (tmp_path / "old", merged)
    ]
    assert shown[0] == shown[1]


def test_the_schema_describes_the_columns():
    schema = json.loads(CliRunner().invoke(main, ["schema"]).output)
    assert schema["properties"]["schema_version"]["const"] == 2
    assert schema["properties"]["tensors"]["$ref"] == "#/$defs/TensorColumns"
    assert "overlap_degree" in schema["$defs"]["AgentColumns"]["properties"]


COUNTS = st.integers(0, 1000)


@st.composite
def tensor_records(draw: st.DrawFn) -> tuple[TensorRecord, ...]:
    models = draw(st.lists(st.text(max_size=3), max_size=4, unique=True))
    names = draw(st.lists(st.text(max_size=3), max_size=5, unique=True))
    tensors = []
    for name in names:
        held = [model for model in models if draw(st.booleans())]
        agents = []
        for model in held:
            degree = tuple(draw(st.lists(COUNTS, max_size=len(held))))
            agents.append(
                TensorAgent(
                    model=model,
                    weight=draw(st.sampled_from([0.0, 1.0, 0.5])),
                    active=sum(degree),
                    shared=sum(degree[1:]),
                    unique=degree[0] if degree else 0,
                    overlap_degree=degree,
                    rescale=draw(st.sampled_from([1.0, 1.2])),
                )
            )
        interval = draw(st.none() | st.just({"change": (0.25, 0.5)}))
        tensors.append(
            TensorRecord(
                name=name,
                numel=draw(COUNTS),
                epsilon=draw(st.sampled_from([1e-5, 1e-4])),
                change=draw(st.floats(0, 1)),
                agents=tuple(agents),
                loading="0" * 16,
                interval=interval,
            )
        )
    return tuple(tensors)


@given(tensors=tensor_records())
def test_columns_hold_all_that_the_objects_hold(tensors):
    columns = TensorColumns.of(tensors)
    again = tensors_of(json.loads(columns.model_dump_json()))
    by_name = [
        tensor.model_copy(update={"agents": tuple(sorted(tensor.agents, key=lambda a: a.model))})
        for tensor in again
    ]
    assert by_name == [
        tensor.model_copy(update={"agents": tuple(sorted(tensor.agents, key=lambda a: a.model))})
        for tensor in tensors
    ]
