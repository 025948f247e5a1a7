"""A record is read or refused in one line: its figures are checked against its own counts."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mergekit.config import MergeConfiguration
from models import Trio, forget_loaded_models, merge_yaml, run_yaml

from mergekit_ram.cli import main
from mergekit_ram.errors import InputError, Note
from mergekit_ram.inspection.inspect import inspect
from mergekit_ram.inspection.sample import Sample
from mergekit_ram.record.check import read_record
from mergekit_ram.record.findings import noted
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord
from mergekit_ram.show.tables import tables

Edit = Callable[[dict[str, Any]], object]


def inspection(trio: Trio, *options: str) -> str:
    recipe = trio.folder / "merge.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    forget_loaded_models()
    command = ["inspect", str(recipe), "--quiet", "--json", "-", "--epsilon", "1e-3", *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return result.stdout.replace(f"{trio.folder}/", "")


@pytest.fixture(scope="module")
def trio_of_module(tmp_path_factory: pytest.TempPathFactory) -> Trio:
    return Trio(tmp_path_factory.mktemp("trio"))


@pytest.fixture(scope="module")
def written(trio_of_module: Trio) -> str:
    """The text of an inspection's record."""
    return inspection(trio_of_module)


def agent(record: dict[str, Any]) -> dict[str, Any]:
    return record["agents"][0]  # type: ignore[no-any-return]


def pair(record: dict[str, Any]) -> dict[str, Any]:
    return record["pairwise"][0]  # type: ignore[no-any-return]


def at(record: dict[str, Any]) -> dict[str, Any]:
    return record["thresholds"][1]["agents"][0]  # type: ignore[no-any-return]


def tensor(record: dict[str, Any]) -> dict[str, Any]:
    return record["tensors"][0]  # type: ignore[no-any-return]


def degree(record: dict[str, Any], agent: int = 0) -> list[Any]:
    return tensor(record)["agents"][agent]["overlap_degree"]  # type: ignore[no-any-return]


def put(place: list[Any], key: int, value: object) -> None:
    place[key] = value


CONTRADICTIONS: dict[str, tuple[Edit, str]] = {
    "doubled tensor": (lambda r: r["tensors"].append(tensor(r)), "parameters is 18720, but its"),
    "doubled agent": (lambda r: r["agents"].append(agent(r)), "agents.length is 4, but its counts"),
    "agent unknown": (lambda r: r["agents"].pop(), "agents.length is 2, but its counts give 3"),
    "agent missing": (
        lambda r: tensor(r)["agents"].pop(),
        "agents.2.overlap_degree.0 is ",
    ),
    "too many": (lambda r: put(degree(r), 0, 10**9), "agents.0.overlap_degree.0 is "),
    "no multiple": (
        lambda r: put(degree(r), 1, degree(r)[1] + 1),
        "agents.0.overlap_degree.1 is ",
    ),
    "weight": (
        lambda r: tensor(r)["agents"][0].update(weight=0),
        "agents.0.weight is 1.0, but its counts give [0.0, 1.0]",
    ),
    "sums": (lambda r: agent(r).update(active=1), "agents.0.active is 1, but its counts give"),
    "degrees": (
        lambda r: agent(r).update(overlap_degree=[1, 2, 3]),
        "agents.0.overlap_degree.0 is 1, but its counts give",
    ),
    "ratio": (
        lambda r: agent(r).update(overlap_unique_ratio=1.5),
        "agents.0.overlap_unique_ratio is 1.5, but its counts give",
    ),
    "no ratio": (
        lambda r: agent(r).update(overlap_unique_ratio=None),
        "agents.0.overlap_unique_ratio is None, but its counts give",
    ),
    "density": (lambda r: agent(r).update(density=0.5), "agents.0.density is 0.5, but its counts"),
    "overlap share": (
        lambda r: agent(r).update(overlap_share=[0.5]),
        "agents.0.overlap_share.length is 1, but its counts give 3",
    ),
    "another λ": (
        lambda r: agent(r).update(rescale=7.0),
        "agents.0.rescale is 7.0, but its counts give 1.2",
    ),
    "another field": (
        lambda r: r.update({"\x1b[2J": 1}),
        r"\x1b[2J is 1, but its counts give None",
    ),
    "another field of an agent": (
        lambda r: agent(r).update({"\x1b[2J": 1}),
        r"agents.0.\x1b[2J is 1, but its counts give None",
    ),
    "parameters": (lambda r: r.update(parameters=7), "parameters is 7, but its counts give"),
    "epsilon": (lambda r: r.update(epsilon=0.5), "epsilon is 0.5, but its counts give 1e-05"),
    "layer": (
        lambda r: r["layers"][0].update(change=0.5),
        "layers.0.change is 0.5, but its counts give",
    ),
    "layer missing": (lambda r: r["layers"].pop(), "layers.length is"),
    "unknown in a pair": (lambda r: pair(r).update(first="nobody"), "pairwise.0.0 is nobody, but"),
    "with itself": (lambda r: pair(r).update(second="coder"), "pairwise.0.1 is coder, but"),
    "pair missing": (lambda r: r["pairwise"].pop(), "pairwise.length is 2, but its counts give 3"),
    "no pairs": (lambda r: r["pairwise"].clear(), "pairwise.length is 0, but its counts give 1"),
    "pair doubled": (lambda r: r["pairwise"].append(pair(r)), "pairwise.length is 4, but its"),
    "jaccard of counts": (
        lambda r: pair(r).update(jaccard=0.5),
        "pairwise.0.jaccard is 0.5, but its counts give 0.",
    ),
    "too many both": (
        lambda r: pair(r).update(both=10**15, jaccard=1),
        "pairwise.0.both is 1000000000000000, but its counts give",
    ),
    "one agent short": (
        lambda r: r["thresholds"][1]["agents"].pop(),
        "thresholds.1.length is 2, but its counts give 3",
    ),
    "another order": (
        lambda r: r["thresholds"][1]["agents"].reverse(),
        "thresholds.1.0.0 is memory, but its counts give coder",
    ),
    "sum at ε": (
        lambda r: at(r).update(active=1),
        "thresholds.1.agents.0.active is 1, but its counts give",
    ),
    "unique share": (
        lambda r: at(r).update(unique_share=1.0),
        "thresholds.1.agents.0.unique_share is 1.0, but its counts give",
    ),
}
DAMAGES: dict[str, tuple[Edit, str]] = {
    "negative": (lambda r: put(degree(r), 0, -5), "tensors.0.agents.0.overlap_degree.0: Input"),
    "enormous": (lambda r: put(degree(r), 0, 1e30), "integer"),
    "large": (lambda r: put(degree(r), 0, 10**30), "should be less than 9223372036854775808"),
    "in words": (lambda r: r.update(seconds="inf"), "seconds: Input should be a finite number"),
    "time": (lambda r: r.update(seconds=-1.0), "seconds: Input should be greater than"),
    "agent twice": (
        lambda r: tensor(r)["agents"].append(tensor(r)["agents"][0]),
        "has two agents of one name",
    ),
    "threshold": (lambda r: tensor(r).update(epsilon=-1), "tensors.0.epsilon: Input should be"),
    "columns": (lambda r: r.update(tensors={"name": []}), "tensors: Input should be a valid"),
    "negative both": (lambda r: pair(r).update(both=-1), "pairwise.0.both: Input should be"),
    "jaccard": (lambda r: pair(r).update(jaccard=7.0), "pairwise.0.jaccard: Input should be less"),
    "cosine": (lambda r: pair(r).update(cosine=-2.0), "pairwise.0.cosine: Input should be greater"),
    "gram cosine": (lambda r: pair(r).update(gram_cosine=1.5), "pairwise.0.gram_cosine: Input"),
    "signs": (lambda r: pair(r).update(sign_conflicts=-0.5), "pairwise.0.sign_conflicts: Input"),
    "negative ε": (
        lambda r: r["thresholds"][0].update(epsilon=-1.0),
        "thresholds.0.epsilon: Input should be greater",
    ),
    "λ below 0": (lambda r: at(r).update(rescale=-1.0), "thresholds.1.agents.0.rescale"),
    "no λ": (lambda r: agent(r).update(rescale=[]), "agents.0.rescale"),
    "rank": (lambda r: agent(r).update(effective_rank=2.0), "agents.0.effective_rank: Input"),
    "effect": (lambda r: agent(r).update(rescale_effect=3.0), "agents.0.rescale_effect: Input"),
}


def refusal(text: str, folder: Path) -> str:
    """What is said of a file after its name."""
    (folder / RECORD_NAME).write_text(text)
    result = CliRunner().invoke(main, ["inspect", str(folder)])
    assert result.exit_code == 1, result.output
    (line,) = result.output.splitlines()
    start = f"Error: {folder / RECORD_NAME} "
    assert line.startswith(start)
    assert len(line) < 2000
    return line.removeprefix(start)


def edited(text: str, edit: Edit) -> str:
    record = json.loads(text)
    edit(record)
    return json.dumps(record)


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_record_that_contradicts_its_counts_is_refused(written, tmp_path, case):
    edit, message = CONTRADICTIONS[case]
    said = refusal(edited(written, edit), tmp_path)
    assert said.startswith("contradicts itself: ")
    assert said.endswith(". Write it again.")
    assert message in said


@pytest.mark.parametrize("case", DAMAGES)
def test_a_value_that_cannot_be_is_refused(written, tmp_path, case):
    edit, message = DAMAGES[case]
    said = refusal(edited(written, edit), tmp_path)
    assert said.startswith("is damaged: ")
    assert message in said


@pytest.mark.parametrize("version", [1, 2, 99, True, "3", {}, None])
def test_records_of_other_versions_are_refused(written, tmp_path, version):
    def edit(record: dict[str, Any]) -> None:
        record["schema_version"] = version

    assert refusal(edited(written, edit), tmp_path) == (
        "is no record of schema version 3, the only one that is read here: its schema_version is "
        f"{version!r}. Inspect or merge again to write a new one."
    )


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"schema_version": 3, "agents": ' + "[" * 900 + "]" * 900 + "}",
        '{"a":' * 100_000,
        '{"schema_version": ' + "9" * 5000 + "}",
        '{"schema_version": 3, "seconds": NaN}',
        '{"schema_version": 3, "seconds": Infinity}',
        "[]",
        "null",
        '{"schema_version": 3, "tensors": [{}]}',
        '"\\ud800"',
        "\x00",
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path, text):
    assert refusal(text, tmp_path)


def test_a_file_that_cannot_be_a_record_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / RECORD_NAME).open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InputError, match="it has 1,000,000,000,000 bytes, more than any record"):
        read_record(tmp_path / RECORD_NAME)
    with pytest.raises(InputError, match="it is no file"):
        read_record(Path("/dev/zero"))


def test_statistics_are_checked_before_they_are_used(trio: Trio):
    merge_yaml(trio.config("ram_plus"), trio.folder / "counts")
    path = trio.folder / "counts" / RECORD_NAME
    path.write_text(edited(path.read_text(), lambda r: put(degree(r), 0, 10**6)))
    config = trio.config("ram_plus", parameters={"statistics": str(path)})
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert f"{path} contradicts itself: agents.0." in result.output.splitlines()[-1]


def test_figures_of_a_sample_are_checked_too(trio: Trio, tmp_path):
    text = inspection(trio, "--sample", "0.3")
    (tmp_path / RECORD_NAME).write_text(text)
    assert read_record(tmp_path).sample is not None
    cases: tuple[tuple[Edit, str], ...] = (
        (lambda r: pair(r).update(jaccard=7.0), "pairwise.0.jaccard: Input"),
        (lambda r: r["thresholds"][0]["agents"].pop(), "thresholds.0.length is 2, but its"),
        (lambda r: r["sample"].update(parameters=10**9), "sample.parameters is 1000000000, but"),
        (lambda r: agent(r).update(density=0.001), "agents.0.density is 0.001, but its counts"),
    )
    for edit, message in cases:
        assert message in refusal(edited(text, edit), tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_rows_are_drawn_the_record_is_read(trio_of_module: Trio, tmp_path, share, seed):
    forget_loaded_models()
    config = MergeConfiguration.model_validate(trio_of_module.config("ram_plus"))
    record = inspect(config, sample=Sample(share, seed), epsilons=[0.0, 1e-2])
    (tmp_path / RECORD_NAME).write_text(record.to_json())
    assert read_record(tmp_path) == record


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be exchanged in a document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        inner = isinstance(item, dict | list)
        found += places(item, (*path, key)) if inner else [(*path, key)]
    return found


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**20)
    | st.floats(0, 3)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_whatever_is_exchanged_in_a_record_it_is_shown_or_refused(written, tmp_path, data):
    record = json.loads(written)
    part = record[data.draw(st.sampled_from(sorted(record)))]
    part = part if isinstance(part, dict | list) and part else record
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places(part)))
        inner = part
        for key in path:
            inner = inner[key]
        inner[last] = data.draw(VALUES)
    (tmp_path / RECORD_NAME).write_text(json.dumps(record), encoding="utf-8")
    try:
        found = read_record(tmp_path / RECORD_NAME)
    except InputError:
        return
    statistics = found.statistics()
    assert all(0 <= agent.active <= statistics.parameters for agent in statistics.agents)
    assert list(tables(found))
    assert OverlapRecord.model_validate_json(found.to_json()) == found


MANY = 300_000
HOSTILE = {
    "numbers for tensors": '"tensors": [' + "0," * MANY + "0]",
    "lists for tensors": '"tensors": [' + "[]," * MANY + "[]]",
    "objects for agents": '"agents": [' + "{}," * MANY + "{}]",
    "words for counts": '"epsilon": [' + '"",' * MANY + '""]',
    "unknown fields": ",".join(f'"{number}":0' for number in range(MANY // 3)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_take_little_time_and_memory(tmp_path, case):
    path = tmp_path / RECORD_NAME
    path.write_text('{"schema_version": 3, ' + HOSTILE[case] + "}")
    started = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as refused:
            read_record(path)
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 30
    assert len(str(refused.value)) < 1000


def test_a_note_becomes_a_finding_with_one_full_stop():
    notes = [Note("a", "it is so"), Note("b", "It is so. It says false.")]
    assert [found.text for found in noted(notes)] == ["it is so.", "It is so. It says false."]
