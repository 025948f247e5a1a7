"""The document with the benchmark's tables: figure, alignment, and what its numbers are of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner

from benchmarks.agents.__main__ import main
from benchmarks.agents.tables import cells
from benchmarks.agents.tiny.conditions import CONDITIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The published results, drawn."""
    folder = tmp_path_factory.mktemp("figure")
    page = folder / "page.md"
    page.write_text("")
    arguments = ["report", str(DOCS / "results.json"), "--document", str(page)]
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
    alignment = cells.markdown(["agent", "chosen", "a", "b", "c", "d"], rows).splitlines()[1]
    assert alignment == "| --- | --- | --: | --: | --: | --: |"


def test_a_table_without_rows_is_still_a_table():
    assert cells.markdown(["a", "b"], []).splitlines() == ["| a | b |", "| --- | --- |"]


@pytest.mark.parametrize("document", ["README.md", "docs/results.md"])
def test_whatever_quotes_the_small_scale_says_that_it_is_one_seed_with_one_failed_agent(document):
    small = json.loads((DOCS / "small.json").read_text())
    score = fmean(task["greedy"] for task in small["merges"]["RAM+"]["tasks"].values())
    paragraphs = (ROOT / document).read_text().split("\n\n")
    quoting = [p for p in paragraphs if f"{score:.3f}" in p and not p.startswith("|")]
    assert quoting
    for paragraph in quoting:
        words = " ".join(paragraph.split())
        assert "one seed" in words
        assert "one of its three agents" in words


def test_the_evaluation_takes_one_thread_unless_it_is_told_another_number():
    import evaluate  # a script of examples/agents

    printed = " ".join(CliRunner().invoke(evaluate.main, ["--help"]).output.split())
    (said,) = re.findall(r"--threads INTEGER RANGE (.*?)\[default: (\d+)", printed)
    assert said == (
        "CPU threads to use; more are slower where other programs use the cores too. ",
        "1",
    )
