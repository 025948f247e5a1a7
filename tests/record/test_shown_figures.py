"""Figures that a record is shown by are checked too: what cannot be is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Trio, forget_loaded_models

from mergekit_ram.cli import main
from mergekit_ram.errors import InputError
from mergekit_ram.merges.notes import Note
from mergekit_ram.record.findings import noted
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord, read_record
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


def pair(record: dict[str, Any]) -> dict[str, Any]:
    return record["pairwise"][0]  # type: ignore[no-any-return]


def at(record: dict[str, Any]) -> dict[str, Any]:
    return record["thresholds"][1]["agents"][0]  # type: ignore[no-any-return]


def agent(record: dict[str, Any]) -> dict[str, Any]:
    return record["agents"][0]  # type: ignore[no-any-return]


PAIR = "pairwise: coder and tool: "
AT = "thresholds: at epsilon 0.001 agent coder: "

CASES: dict[str, tuple[Edit, str]] = {
    "unknown in a pair": (
        lambda r: pair(r).update(first="nobody"),
        "pairwise: agent nobody is not among the agents of the record",
    ),
    "with itself": (lambda r: pair(r).update(second="coder"), "pairwise: agent coder with itself"),
    "pair missing": (lambda r: r["pairwise"].pop(), "pairwise: memory and tool are there 0 times"),
    "no pairs": (lambda r: r["pairwise"].clear(), "pairwise: coder and tool are there 0 times"),
    "pair doubled": (
        lambda r: r["pairwise"].append(pair(r)),
        "pairwise: coder and tool are there 2 times",
    ),
    "too many both": (
        lambda r: pair(r).update(both=10**15),
        f"{PAIR}both is 1,000,000,000,000,000",
    ),
    "negative both": (lambda r: pair(r).update(both=-1), f"{PAIR}both is -1, and at most"),
    "jaccard": (lambda r: pair(r).update(jaccard=7.0), f"{PAIR}jaccard is 7, and a share lies"),
    "jaccard of counts": (
        lambda r: pair(r).update(jaccard=0.5),
        f"{PAIR}jaccard is 0.5, but its counts give 0.",
    ),
    "cosine": (lambda r: pair(r).update(cosine=-2.0), f"{PAIR}cosine is -2, and a cosine lies"),
    "gram cosine": (lambda r: pair(r).update(gram_cosine=1.5), f"{PAIR}gram_cosine is 1.5, and a"),
    "signs": (lambda r: pair(r).update(sign_conflicts=-0.5), f"{PAIR}sign_conflicts is -0.5, and"),
    "one agent short": (
        lambda r: r["thresholds"][1]["agents"].pop(),
        "thresholds: at epsilon 0.001 the agents are coder, tool, and not coder, tool, memory",
    ),
    "another agent": (
        lambda r: at(r).update(model="nobody"),
        "the agents are nobody, tool, memory, and not coder, tool, memory",
    ),
    "another order": (
        lambda r: r["thresholds"][1]["agents"].reverse(),
        "the agents are memory, tool, coder, and not coder, tool, memory",
    ),
    "negative ε": (
        lambda r: r["thresholds"][0].update(epsilon=-1.0),
        "thresholds: epsilon is -1, and no threshold is below 0",
    ),
    "negative count": (lambda r: at(r).update(unique=-1), f"{AT}unique is -1"),
    "sum": (lambda r: at(r).update(active=1), f"{AT}active 1 is not the sum of shared"),
    "too many": (
        lambda r: at(r).update(active=10**9, shared=10**9, unique=0),
        f"{AT}1,000,000,000 active parameters of",
    ),
    "density": (lambda r: at(r).update(density=0.9), f"{AT}density is 0.9, but its counts give"),
    "unique share": (lambda r: at(r).update(unique_share=2.0), f"{AT}unique_share is 2, but its"),
    "ratio": (
        lambda r: at(r).update(overlap_unique_ratio=9.0),
        f"{AT}overlap_unique_ratio is 9.0, but its counts give",
    ),
    "λ below 0": (lambda r: at(r).update(rescale=-1.0), f"{AT}rescale is -1, and λ is a number"),
    "no λ": (lambda r: agent(r).update(rescale=[]), "agent coder: rescale is an empty list, and λ"),
    "no λ at ε": (lambda r: at(r).update(rescale=[]), f"{AT}rescale is an empty list, and λ"),
    "another λ": (
        lambda r: agent(r).update(rescale=7.0),
        "agent coder: rescale is 7, but 1.2 in tensor model.",
    ),
    "rank": (
        lambda r: agent(r).update(effective_rank=2.0),
        "agent coder: effective_rank is 2, and a share lies between 0 and 1",
    ),
    "effect": (lambda r: agent(r).update(rescale_effect=3.0), "agent coder: rescale_effect is 3"),
    "overlap share": (
        lambda r: agent(r).update(overlap_share=[4.0]),
        "agent coder: overlap_share.0 is 4, and a share lies between 0 and 1",
    ),
    "layer": (
        lambda r: r["layers"][0].update(change=2.0),
        "change is 2, and a share lies between 0 and 1",
    ),
    "time": (lambda r: r.update(seconds=-1.0), "seconds is -1, and no time is below 0"),
}


def refusal(record: dict[str, Any], folder: Path) -> str:
    (folder / RECORD_NAME).write_text(json.dumps(record))
    result = CliRunner().invoke(main, ["inspect", str(folder)])
    assert result.exit_code == 1, result.output
    (line,) = result.output.splitlines()
    start, end = f"Error: {folder / RECORD_NAME} contradicts itself: ", ". Write it again."
    assert line.startswith(start)
    assert line.endswith(end)
    return line


@pytest.mark.parametrize("case", CASES)
def test_a_figure_that_cannot_be_is_refused_in_one_line(written, tmp_path, case):
    edit, message = CASES[case]
    record = json.loads(written)
    edit(record)
    assert message in refusal(record, tmp_path)


def test_figures_of_a_sample_are_bounded_too(trio: Trio, tmp_path):
    text = inspection(trio, "--sample", "0.3")
    (tmp_path / RECORD_NAME).write_text(text)
    assert read_record(tmp_path).sample is not None
    for edit, message in (
        (lambda r: pair(r).update(both=10**15), f"{PAIR}both is 1,000,000,000,000,000"),
        (lambda r: pair(r).update(jaccard=7.0), f"{PAIR}jaccard is 7"),
        (lambda r: r["thresholds"][0]["agents"].pop(), "the agents are coder, tool, and not"),
        (lambda r: r["sample"].update(parameters=10**9), "sample: 1,000,000,000 parameters of"),
    ):
        record = json.loads(text)
        edit(record)
        assert message in refusal(record, tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_rows_are_drawn_the_record_is_read(trio_of_module: Trio, tmp_path, share, seed):
    from mergekit.config import MergeConfiguration

    from mergekit_ram.inspection.inspect import inspect
    from mergekit_ram.inspection.sample import Sample

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


VALUES = (
    st.none()
    | st.integers(-3, 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.lists(st.floats(0, 3), max_size=3)
)


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_whatever_is_exchanged_in_an_inspection_it_is_shown_or_refused(written, tmp_path, data):
    record = json.loads(written)
    part = data.draw(st.sampled_from(["agents", "pairwise", "thresholds", "layers", "settings"]))
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(places(record[part])))
        inner = record[part]
        for key in path:
            inner = inner[key]
        inner[last] = data.draw(VALUES)
        if not isinstance(record[part], dict | list) or not record[part]:
            break
    (tmp_path / RECORD_NAME).write_text(json.dumps(record), encoding="utf-8")
    try:
        found = read_record(tmp_path / RECORD_NAME)
    except InputError:
        return
    assert list(tables(found))
    assert OverlapRecord.model_validate_json(found.to_json()) == found


def test_a_note_becomes_a_finding_with_one_full_stop():
    notes = [Note("a", "it is so"), Note("b", "It is so. It says false.")]
    assert [found.text for found in noted(notes)] == ["it is so.", "It is so. It says false."]
