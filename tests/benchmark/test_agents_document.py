"""The document with the benchmark's tables: figure, alignment, and what its numbers are of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner
from mergekit.merge_methods import merge_state_dicts
from model import EXAMPLE_SHAPE
from safetensors.torch import load_file

from benchmarks.agents import tables
from benchmarks.agents.__main__ import main
from benchmarks.agents.conditions import CONDITIONS, FULL
from benchmarks.agents.study import Scorer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STUDY = ROOT / "benchmarks" / "agents"
MODELS = ("base", "add", "reverse", "sort")


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The published results, drawn."""
    folder = tmp_path_factory.mktemp("figure")
    page = folder / "page.md"
    page.write_text("")
    arguments = ["report", str(STUDY / "results.json"), "--document", str(page)]
    result = CliRunner().invoke(main, [*arguments, "--figure", str(folder / "figure.svg")])
    assert result.exit_code == 0, result.output
    return (folder / "figure.svg").read_text()


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_the_figure_says_in_five_words_what_a_condition_is(figure, condition):
    assert len(condition.words.split()) == 5
    assert f">{condition.words}<" in figure
    assert f">{condition.name} (" in figure


@pytest.mark.parametrize(
    "entry", ["base and agents", "other merges", "this package's merges", "one base"]
)
def test_the_figure_has_a_legend_of_its_marks(figure, entry):
    assert f">{entry}<" in figure
    assert ">mean ± standard deviation between bases<" in figure


def test_the_published_figure_is_that_of_the_published_results(figure):
    # Another matplotlib draws other curves; what is written in it is the same.
    published = (DOCS / "agents.svg").read_text()
    written = re.compile(r"<text [^>]*>([^<]*)<")
    assert written.findall(published) == written.findall(figure)


def test_columns_of_text_are_on_the_left_and_those_of_numbers_on_the_right():
    rows = [
        ["add", "r=0.1", "0.91 ± 0.02", "+1.2", "–", "*TIES*"],
        ["sort", "2 of 3", "0.92", "-0.3 ± 0.1", "20–40", "-0.5"],
        ["both", "", "0.93", "", "7 %", "+0.5 ± 0.1"],
    ]
    alignment = tables.markdown(["agent", "chosen", "a", "b", "c", "d"], rows).splitlines()[1]
    assert alignment == "| --- | --- | --: | --: | --: | --: |"


def test_a_table_without_rows_is_still_a_table():
    assert tables.markdown(["a", "b"], []).splitlines() == ["| a | b |", "| --- | --- |"]


def harmful() -> dict[str, list[float]]:
    """The figures of the table on an agent that harms, by what was done about it."""
    section = (DOCS / "results.md").read_text().split("## An agent that harms")[1]
    rows = re.findall(r"^\| (.+?) \| (0\..+) \|$", section.split("\n## ")[0], re.MULTILINE)
    return {name: [float(cell) for cell in cells.split(" | ")] for name, cells in rows}


@pytest.mark.parametrize(
    ("row", "weight", "part"),
    [
        ("all three agents", 1.0, ""),
        ("without `sort`", 0.0, ""),
        ("`sort` with weight 0.5", 0.5, ""),
        ("`sort` left out of `self_attn`", 0.0, "self_attn"),
    ],
)
def test_an_agent_that_harms_costs_and_gives_what_is_said(row, weight, part):
    models = {n: load_file(ROOT / f"examples/agents/{n}/model.safetensors") for n in MODELS}
    weights = {"add": 1.0, "reverse": 1.0, "sort": 1.0}
    whole, weighed = (
        merge_state_dicts(models, "ram", base="base", parameters={"weight": weights | {"sort": w}})
        for w in (1.0, weight)
    )
    merged = {name: (weighed if part in name else whole)[name] for name in whole}
    scores = Scorer(EXAMPLE_SHAPE, FULL).score(merged, "heldout")
    found = list(scores.values())
    # Processors may break a tie between two tokens differently, in a prompt or two.
    assert [*found, fmean(found)] == pytest.approx(harmful()[row], abs=0.005)


def small(seed: int, name: str) -> float:
    """Mean accuracy of a merge at the small scale."""
    found = json.loads((STUDY / f"small-{seed}.json").read_text())
    return fmean(task["greedy"] for task in found["merges"][name]["tasks"].values())


@pytest.mark.parametrize("document", ["README.md", "docs/results.md"])
def test_whatever_quotes_the_small_scale_tells_of_agents_that_failed_and_of_the_second_seed(
    document,
):
    paragraphs = (ROOT / document).read_text().split("\n\n")
    score = f"{small(0, 'ram_directions'):.3f}"
    mean = f"mean {small(0, 'mean of task vectors'):.3f}"
    quoting = [p for p in paragraphs if score in p and mean in p]
    assert quoting
    for paragraph in quoting:
        words = " ".join(paragraph.split())
        assert re.search("[Oo]ne of three agents did not learn its task", words)
        assert re.search("With a second seed two of three did not", words)


def test_the_merges_that_are_called_level_at_the_second_seed_are():
    found = [small(1, name) for name in ("ram_directions", "RAM+", "TIES")]
    assert max(found) - min(found) < 0.01
    quoted = ", ".join(f"{score:.3f}" for score in found)
    assert f"level there ({quoted})" in " ".join((DOCS / "results.md").read_text().split())


def test_the_evaluation_takes_one_thread_unless_it_is_told_another_number():
    import evaluate  # a script of examples/agents

    printed = " ".join(CliRunner().invoke(evaluate.main, ["--help"]).output.split())
    (said,) = re.findall(r"--threads INTEGER RANGE (.*?)\[default: (\d+)", printed)
    assert said == (
        "CPU threads to use; more are slower where other programs use the cores too. ",
        "1",
    )


def test_the_shipped_agents_merge_over_directions_to_what_their_page_says():
    page = (ROOT / "examples" / "agents" / "README.md").read_text()
    (row,) = re.findall(r"^\| `ram_directions` \| (.+) \|$", page, re.MULTILINE)
    models = {n: load_file(ROOT / f"examples/agents/{n}/model.safetensors") for n in MODELS}
    merged = merge_state_dicts(models, "ram_directions", base="base")
    scores = Scorer(EXAMPLE_SHAPE, FULL).score(merged, "heldout")
    found = list(scores.values())
    said = [float(cell) for cell in row.split(" | ")]
    assert [*found, fmean(found)] == pytest.approx(said, abs=0.005)
