"""What the README shows is run again."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from models import read_weights
from reference import same_bits

from mergekit_ram import RamPlusMerge

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The contents of the README's fenced blocks of one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in fenced if name == language]


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def merges(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with both merges as the README makes them, and what the command printed."""
    folder = tmp_path_factory.mktemp("readme")
    (line,) = (command for command in commands() if "mergekit-yaml" in command)
    words = shlex.split(line.split("&&")[-1])
    assert words == ["mergekit-yaml", "-v", "examples/yaml/ram_plus.yml", "./merged"]
    printed = ""
    for recipe, out in (("ram", "merged-ram"), ("ram_plus", "merged")):
        command = [sys.executable, "-m", "mergekit.scripts.run_yaml", "-v"]
        result = subprocess.run(
            [*command, f"examples/yaml/{recipe}.yml", str(folder / out)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        printed = result.stderr
    return folder, printed


def test_the_recipe_is_the_one_that_the_command_runs():
    (recipe,) = blocks("yaml")
    shown = yaml.safe_load(recipe)
    run = yaml.safe_load((ROOT / "examples" / "yaml" / "ram_plus.yml").read_text())
    defaults = {p.name: p.default for p in RamPlusMerge.spec.parameters}
    assert run.pop("parameters").items() <= defaults.items()
    assert shown == run


def test_the_log_lines_are_those_of_the_command(merges):
    shown = [line for line in README.splitlines() if line.startswith("INFO:mergekit_ram:")]
    assert len(shown) == 3
    _, printed = merges
    assert [line for line in printed.splitlines() if line.startswith("INFO:mergekit_ram:")] == shown


def test_the_accuracies_are_those_of_the_models(merges):
    folder, _ = merges
    header, *rows = next(block for block in blocks("") if block.startswith("model ")).splitlines()
    shown = {row.split()[0]: [float(cell) for cell in row.split()[1:]] for row in rows}
    paths = [name if name.startswith("examples") else str(folder / name) for name in shown]
    result = subprocess.run(
        [sys.executable, "examples/agents/evaluate.py", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    printed_header, *printed = result.stdout.splitlines()
    assert printed_header.split() == header.split()
    for row, (name, figures) in zip(printed, shown.items(), strict=True):
        path, *cells = row.split()
        assert path.endswith(name)
        # Processors may break a tie between two tokens differently, in a prompt or two.
        assert [float(cell) for cell in cells] == pytest.approx(figures, abs=0.005)


def test_the_inspection_prints_what_is_shown():
    line = next(command for command in commands() if command.startswith("mergekit-ram inspect"))
    result = subprocess.run(
        [sys.executable, "-m", "mergekit_ram.cli", *shlex.split(line)[1:], "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    (shown,) = (block for block in blocks("") if block.startswith("ram_plus over"))
    assert result.stdout == shown


def test_the_page_is_made_by_the_command_that_is_shown(tmp_path):
    (line,) = (command for command in commands() if "--html" in command)
    page = tmp_path / "overlap.html"
    arguments = [str(page) if word == "overlap.html" else word for word in shlex.split(line)[1:]]
    subprocess.run(
        [sys.executable, "-m", "mergekit_ram.cli", *arguments, "--quiet"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert (ROOT / "docs" / "overlap.png").read_bytes().startswith(b"\x89PNG")


def test_the_figures_of_the_benchmark_are_those_of_its_tables():
    results = (ROOT / "docs" / "results.md").read_text()
    section = README.split("## Does it help?")[1].split("\n## ")[0]
    rows = {"RAM": "RAM", "RAM+": "RAM+", "mean of task vectors": "mean of task vectors"}
    for shown, row in (rows | {"TIES": "TIES"}).items():
        (figure,) = re.findall(rf"\b{re.escape(shown)}\s+\((0\.\d+)\)", section)
        (measured,) = re.findall(rf"^\| {re.escape(row)} \| (0\.\d+) ±", results, re.MULTILINE)
        assert figure == measured, shown


def test_the_figures_of_the_language_model_are_those_of_its_table():
    results = (ROOT / "docs" / "results.md").read_text()
    table = results.split("<!-- table: small: accuracy -->")[1].split("<!-- end -->")[0]
    section = README.split("SmolLM2-135M-Instruct")[1].split("\n## ")[0]
    rows = {"RAM+ has": "RAM+", "TIES": "TIES"}
    rows |= {"sum": "sum of task vectors", "mean": "mean of task vectors"}
    for shown, row in rows.items():
        (figure,) = re.findall(rf"\b{re.escape(shown)}\s+(0\.\d+)", section)
        (cells,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", table, re.MULTILINE)
        assert figure == cells.split(" | ")[3], shown


def test_the_merges_are_two_different_models(merges):
    folder, _ = merges
    ram, plus = read_weights(folder / "merged-ram"), read_weights(folder / "merged")
    assert any(not same_bits(ram[name], plus[name]) for name in ram)


def test_the_python_example_prints_what_its_comment_says():
    (code,) = blocks("python")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == code.strip().splitlines()[-1].split("#")[1].strip(), (
        result.stderr
    )


def test_the_parameter_table_is_that_of_the_methods():
    rows = re.findall(r"^\| `(\w+)`( \(per model\))? \| (\S+) \| (\S+) \|", README, re.MULTILINE)
    shown = {name: (bool(per_model), default) for name, per_model, _, default in rows}
    specs = {p.name: p for p in RamPlusMerge.spec.parameters}
    assert shown.keys() == specs.keys()
    for name, (per_model, default) in shown.items():
        assert per_model == (specs[name].scope.value == "non_base")
        if default in ("computed", "none"):
            assert specs[name].default is None
        else:
            assert float(default) == specs[name].default


def test_ci_runs_the_readmes_test_command():
    (line,) = (command for command in commands() if command.endswith("pytest"))
    script = (ROOT / ".ci" / "run").read_text()
    for part in line.split(" && ")[2:]:
        expected = part.replace("pip install", "pip install --quiet")
        assert expected in script.splitlines(), part


def test_every_test_that_the_readme_names_exists():
    named = set(re.findall(r"`(test_\w+)`", README))
    assert len(named) > 20
    defined = set()
    for file in (ROOT / "tests").glob("test_*.py"):
        defined |= set(re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE))
    assert named <= defined, named - defined
