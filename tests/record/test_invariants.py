"""Records are checked: what contradicts itself is refused with tensor, agent and value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Trio, merge_yaml, run_yaml

from mergekit_ram.cli import main
from mergekit_ram.errors import InputError
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord, read_record

Edit = Callable[[dict[str, Any]], object]
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a merge's record."""
    trio = Trio(tmp_path_factory.mktemp("trio"))
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    text = (trio.folder / "counts" / RECORD_NAME).read_text()
    return text.replace(f"{trio.folder}/", "")


def degree(record: dict[str, Any], agent: int = 0) -> list[list[int]]:
    return record["tensors"]["agents"][agent]["overlap_degree"]  # type: ignore[no-any-return]


def double(record: dict[str, Any]) -> None:
    tensors = record["tensors"]
    for name in ("name", "numel", "change", "loading"):
        tensors[name].append(tensors[name][0])
    for agent in tensors["agents"]:
        for column in agent["overlap_degree"]:
            column.append(column[0])


def set_in(place: list[Any], key: Any, value: object) -> None:
    place[key] = value


CASES: dict[str, tuple[Edit, str]] = {
    "negative": (lambda r: set_in(degree(r)[0], 0, -5), "agent coder: a count of -5"),
    "too many": (lambda r: set_in(degree(r)[0], 0, 10**9), "active parameters of 3,072"),
    "enormous": (lambda r: set_in(degree(r)[0], 0, 1e30), "should be a valid integer"),
    "no integer": (lambda r: set_in(degree(r)[0], 0, 10**30), "is no number that a record holds"),
    "infinite": (lambda r: r.update(seconds=float("inf")), "Infinity is no number"),
    "no number": (lambda r: r.update(seconds=float("nan")), "NaN is no number"),
    "in words": (lambda r: r.update(seconds="inf"), "seconds: Input should be a valid number"),
    "doubled tensor": (double, "is there 2 times"),
    "doubled agent": (lambda r: r["agents"].append(r["agents"][0]), "agent coder is there 2 times"),
    "agent missing": (
        lambda r: r["tensors"]["agents"].pop(),
        "overlap_degree has 3 entries, and 2 agents take part",
    ),
    "agent unknown": (lambda r: r["agents"].pop(), "is not among the agents of the record"),
    "agents alone": (
        lambda r: set_in(degree(r)[1], 0, degree(r)[1][0] + 1),
        "times a parameter that 1 others changed too, which is no multiple of 2",
    ),
    "one agent's shared": (
        lambda r: set_in(degree(r)[2], 0, degree(r)[2][0] + 3),
        "parameters that 2 others changed too, and all agents together have",
    ),
    "sums": (lambda r: r["agents"][0].update(active=1), "agent coder: active 1, shared"),
    "sum of degrees": (
        lambda r: r["agents"][0].update(overlap_degree=[1, 2, 3]),
        "overlap_degree is [1, 2, 3], but the tensors' sum is",
    ),
    "ratio": (
        lambda r: r["agents"][0].update(overlap_unique_ratio=1.5),
        "agent coder: overlap_unique_ratio is 1.5, but its counts give",
    ),
    "density": (lambda r: r["agents"][0].update(density=0.5), "density is 0.5, but its counts"),
    "parameters": (lambda r: r.update(parameters=7), "parameters is 7, but its tensors have"),
    "change": (lambda r: set_in(r["tensors"]["change"], 0, 0.5), "change is 0.5, but"),
    "epsilon": (lambda r: r["tensors"].update(epsilon=-1), "epsilon is -1"),
    "short column": (lambda r: r["tensors"]["numel"].pop(), "values for 26 tensors"),
    "ragged": (lambda r: set_in(degree(r)[0], 0, None), "overlap_degree: null before a number"),
    "half": (
        lambda r: r["tensors"]["agents"][0].update(weight=[None] * 26),
        "null in one column and a number in another",
    ),
    "no columns": (lambda r: r.update(tensors=7), "tensors: Input should be a valid"),
    "another key": (lambda r: r.update({"\x1b[2J": 1}), r"\x1b[2J: Extra inputs are not permitted"),
    "version": (lambda r: r.update(schema_version=True), "its schema_version is True"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_record_that_contradicts_itself_is_refused_in_one_line(written, tmp_path, case):
    edit, message = CASES[case]
    record = json.loads(written)
    edit(record)
    path = tmp_path / RECORD_NAME
    path.write_text(json.dumps(record))
    result = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    (line,) = result.output.splitlines()
    assert result.exit_code == 1
    assert line.startswith(f"Error: {path} ")
    assert message in line


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"schema_version": 2, "agents": ' + "[" * 900 + "]" * 900 + "}",
        '{"a":' * 100_000,
        '{"schema_version": ' + "9" * 5000 + "}",
        "[]",
        "null",
        '{"schema_version": {}}',
        '{"schema_version": 2, "tensors": {"name": {}}}',
        '"\\ud800"',
        "\x00",
    ],
)
def test_what_is_no_record_ends_in_one_line(tmp_path, text):
    (tmp_path / RECORD_NAME).write_text(text)
    result = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert len(result.output) < 2000
    assert result.output.startswith(f"Error: {tmp_path / RECORD_NAME} ")


def test_files_that_no_record_is_are_refused_before_they_are_read(tmp_path):
    with (tmp_path / RECORD_NAME).open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InputError, match="it has 1,000,000,000,000 bytes, more than any record"):
        read_record(tmp_path / RECORD_NAME)
    with pytest.raises(InputError, match="it is no file"):
        read_record(Path("/dev/zero"))


def test_statistics_are_checked_before_they_are_used(trio: Trio):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    path = trio.folder / "counts" / RECORD_NAME
    record = json.loads(path.read_text())
    degree(record)[0][0] = -3
    path.write_text(json.dumps(record))
    config = trio.config("ram_plus", parameters={"statistics": str(path)})
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert f"{path} contradicts itself: tensor lm_head" not in result.output
    assert "a count of -3. Write it again." in result.output.splitlines()[-1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be exchanged in a document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items if isinstance(value, dict | list) else ():
        found += places(item, (*path, key)) if isinstance(item, dict | list) else [(*path, key)]
    return found


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_exchanged_in_a_record_it_is_read_or_refused(written, tmp_path, data):
    record = json.loads(written)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places(record)))
        inner = record
        for key in path:
            inner = inner[key]
        inner[last] = data.draw(JSON | st.integers(-3, 5))
    (tmp_path / RECORD_NAME).write_text(json.dumps(record), encoding="utf-8")
    try:
        found = read_record(tmp_path / RECORD_NAME)
    except InputError:
        return
    statistics = found.statistics()
    assert all(0 <= agent.active <= statistics.parameters for agent in statistics.agents)
    assert OverlapRecord.model_validate_json(found.to_json()) == found
