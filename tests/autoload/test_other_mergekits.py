"""Another mergekit goes on working, and our methods there answer in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forks import Done, Job, run_all
from models import Trio, read_weights
from other_mergekits import OLDER, RUN_METHODS, fetch_older, python_with, renamed, write_recipe
from processes import OURS
from reference import same_bits

REFUSED = re.compile(
    r"(ram|ram_plus) HostError mergekit-ram \S+ does not find .* in mergekit 0\.1\.5 as expected, "
    r"and changes nothing\. Install a matching pair of versions\."
)

PARTS = {
    "_METHODS": "_TABLE",
    "registered_methods": "all_methods",
    "OptionalTensorPolicy": "MissingTensorPolicy",
    "InputContract": "Contract",
    "task_adapter": "adapting",
    "ExecuteMergeMethodTask": "MergeTask",
    "output_weight": "written_weight",
    "MergePlanner": "Planner",
    "_plan": "_make_plan",
    "generate_card": "make_card",
    "LoaderCache": "Loaders",
    "ImmutableMap": "FrozenMap",
}
"""Parts of mergekit that we build upon, and what a later release might call them."""

HARMLESS = {"registered_methods", "ImmutableMap"}
"""Without these our methods work all the same."""


@pytest.fixture(scope="module")
def linear(shared_trio: Trio) -> Path:
    return write_recipe(shared_trio.folder / "linear.yml", list(shared_trio.agents))


def merges_alike(folder: Path, first: str, second: str) -> bool:
    one, two = read_weights(folder / first), read_weights(folder / second)
    assert one
    return one.keys() == two.keys() and all(same_bits(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def ran(linear: Path, shared_trio: Trio) -> dict[str, Done]:
    """What merging says, by the part that has another name; results lie in folders of that name."""
    folder, jobs = shared_trio.folder, {}
    for part, name in PARTS.items():
        mergekit = renamed(folder / part / "path", part, name)
        arguments = (linear, folder / part, shared_trio.base_path)
        jobs[part] = Job(RUN_METHODS, arguments, mergekit)
    return run_all(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_mergekit_with_another_part_merges_by_its_own_methods(part, ran, shared_trio):
    result = ran[part]
    assert result.returncode == 0, result.stderr
    first, *ours, last = result.stdout.splitlines()
    assert [first, last] == ["linear merged"] * 2
    assert merges_alike(shared_trio.folder / part, "0", "3")
    assert "Traceback" not in result.stderr
    if part in HARMLESS:
        assert ours == ["ram merged", "ram_plus merged"]
    else:
        assert len(ours) == 2
        assert all(REFUSED.fullmatch(line) for line in ours), ours


@pytest.fixture(scope="module")
def older(request: pytest.FixtureRequest) -> Path:
    """The older release, fetched once and kept in pytest's cache."""
    folder = request.config.cache.mkdir(f"mergekit-{OLDER}")
    marker = folder / "complete"
    if not marker.exists():
        fetch_older(folder)
        marker.touch()
    return folder


REFUSAL = (
    r"mergekit-ram \S+ works with mergekit >= 0\.1\.5, < 0\.2; installed is mergekit 0\.1\.4\. "
    r"Install a matching pair of versions\."
)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    "first", ["mergekit.merge_methods", "torch", "mergekit_ram", "mergekit.plan"]
)
def test_an_older_mergekit_answers_for_its_own_methods_alone(first, older):
    code = (
        f"import {first}\n"
        "from mergekit import merge_methods\n"
        "print(type(merge_methods.get('linear')).__name__)\n"
        "for name in ('ram', 'ram_plus', 'nonsense'):\n"
        "    try:\n        merge_methods.get(name)\n"
        "    except Exception as error:\n        print(type(error).__name__, error)\n"
    )
    result = python_with(older, "-c", code)
    assert result.returncode == 0, result.stderr
    own, ram, plus, nonsense = result.stdout.splitlines()
    assert own == "LinearMerge"
    assert re.fullmatch("HostError " + REFUSAL, ram)
    assert plus == ram
    assert nonsense == "RuntimeError Unimplemented merge method nonsense"


@pytest.mark.slow
@pytest.mark.network
def test_an_older_mergekit_merges_and_refuses_ours_in_one_line(
    older, linear, shared_trio, tmp_path
):
    command = ("-m", "mergekit.scripts.run_yaml")
    result = python_with(older, *command, linear, tmp_path / "0", "--no-copy-tokenizer")
    assert result.returncode == 0, result.stderr
    assert read_weights(tmp_path / "0")
    agents, base = list(shared_trio.agents), shared_trio.base_path
    ours = write_recipe(tmp_path / "ram.yml", agents, merge_method="ram", base_model=base)
    result = python_with(older, *command, ours, tmp_path / "1", "--no-copy-tokenizer")
    assert result.returncode == 1
    assert re.fullmatch("Error: " + REFUSAL, result.stderr.splitlines()[-1])
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.network
def test_status_names_an_older_mergekit(older):
    result = python_with(older, *OURS, "status", "--check")
    assert result.returncode == 0, result.stderr
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert rows["mergekit"] == OLDER
    assert re.fullmatch("nobody: " + REFUSAL, rows["ram"])
