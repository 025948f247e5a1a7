"""What the README shows is run again."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from document_blocks import OFFLINE, ROOT, blocks, chdir, commands, document
from mergekit.scripts import run_yaml
from models import read_weights
from reference import same_bits

from mergekit_ram import RamPlusMerge
from mergekit_ram.record.verdict import LITTLE_UNIQUE, MUCH_UNIQUE, OF_CHANCE

README = document("README.md")


@pytest.fixture(scope="module")
def merges(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the README's three merges, and what the command printed."""
    folder = tmp_path_factory.mktemp("readme")
    (line,) = (command for command in commands(README) if "mergekit-yaml" in command)
    words = shlex.split(line.split("&&")[-1])
    assert words == ["mergekit-yaml", "-v", "examples/yaml/ram_plus.yml", "./merged"]
    command = [
        sys.executable,
        "-m",
        "mergekit.scripts.run_yaml",
        *words[1:3],
        str(folder / "merged"),
    ]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=OFFLINE
    )
    with chdir(ROOT):
        for recipe, out in (("ram", "merged-ram"), ("ram_directions", "merged-directions")):
            arguments = [f"examples/yaml/{recipe}.yml", str(folder / out), "--quiet"]
            done = CliRunner().invoke(run_yaml.main, arguments)
            assert done.exit_code == 0, done.output
    return folder, result.stderr


def test_the_recipe_is_the_one_that_the_command_runs():
    (recipe,) = blocks(README, "yaml")
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


def test_the_accuracies_are_those_of_the_models(merges, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "agents")
    import evaluate

    folder, _ = merges
    header, *rows = next(
        block for block in blocks(README, "") if block.startswith("model ")
    ).splitlines()
    shown = {row.split()[0]: row.split()[1:] for row in rows}
    agents = {name: cells for name, cells in shown.items() if name.startswith("examples/agents/")}
    merged = {name: cells for name, cells in shown.items() if name not in agents}
    assert len(agents) == 4
    assert len(merged) == 3
    # Those of the agents are the ones of their own document.
    others = [line.split() for line in document("examples/agents/README.md").splitlines()]
    for name, cells in agents.items():
        assert [Path(name).name, *cells] in others
    result = CliRunner().invoke(evaluate.main, [str(folder / name) for name in merged])
    assert result.exit_code == 0, result.output
    printed_header, *printed = result.stdout.splitlines()
    assert printed_header.split() == header.split()
    for row, (name, figures) in zip(printed, merged.items(), strict=True):
        path, *cells = row.split()
        assert path.endswith(name)
        # Processors may break a tie between two tokens differently, in a prompt or two.
        expected = pytest.approx([float(figure) for figure in figures], abs=0.005)
        assert [float(cell) for cell in cells] == expected


def test_the_figures_of_the_benchmark_are_those_of_its_tables():
    results = document("benchmarks/agents/RESULTS.md")
    section = README.split("## Which method to take")[1].split("\n## ")[0]
    rows = {"RAM": "RAM", "RAM+": "RAM+", "mean of task vectors": "mean of task vectors"}
    for shown, row in (rows | {"TIES": "TIES"}).items():
        (figure,) = re.findall(rf"\b{re.escape(shown)}\s+\((0\.\d+)\)", section)
        (measured,) = re.findall(rf"^\| {re.escape(row)} \| (0\.\d+) ±", results, re.MULTILINE)
        assert figure == measured, shown


def test_the_figures_of_the_language_model_are_those_of_its_table():
    results = document("docs/results.md")
    table = results.split("<!-- table: small, seed 0: accuracy -->")[1].split("<!-- end -->")[0]
    section = README.split("SmolLM2-135M-Instruct")[1].split("\n## ")[0]
    rows = {"RAM+": "RAM+", "TIES": "TIES", "WUDI": "WUDI", "ram_directions` has": "ram_directions"}
    rows |= {"sum": "sum of task vectors", "mean": "mean of task vectors"}
    for shown, row in rows.items():
        (figure,) = re.findall(rf"\b{re.escape(shown)}\s+(0\.\d+)", section)
        (cells,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", table, re.MULTILINE)
        assert figure == cells.split(" | ")[3], shown


def test_the_merges_are_two_different_models(merges):
    folder, _ = merges
    ram, plus = read_weights(folder / "merged-ram"), read_weights(folder / "merged")
    assert any(not same_bits(ram[name], plus[name]) for name in ram)


def test_ci_runs_the_readmes_test_command():
    (line,) = (command for command in commands(README) if "&& pytest" in command)
    script = document(".ci/run")
    for part in line.split(" && ")[2:]:
        expected = part.replace("pip install", "pip install --quiet")
        assert expected in script.splitlines(), part


def test_the_cost_of_7b_follows_from_its_parameters():
    parameters = 7_615_616_512  # of Qwen2.5-7B, in bfloat16
    assert f"| read | {4 * 2 * parameters / 1e9:.0f} GB;" in README
    assert f"| written, and free disk needed | {2 * parameters / 1e9:.0f} GB |" in README
    assert "| time, two cores | about a minute " in README
    row = re.search(
        r"^\| `mergekit-yaml` \| .* \| ([\d.]+) \| [^|]+ \|$", document("docs/large.md"), re.M
    )
    assert row is not None
    assert 50 < float(row[1]) * parameters / 1e9 < 70


def test_the_rule_is_that_of_the_verdict():
    section = README.split("## Which method to take")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    much, little = (f"{100 * share:.0f} %" for share in (MUCH_UNIQUE, LITTLE_UNIQUE))
    chance = f"no less than {OF_CHANCE:g} of what chance would leave"
    assert rows == [
        (f"at least {much}, and {chance}", "ram_plus", "`ram_directions`"),
        (f"less, but at least {little}", "ram_directions", "`ram_plus`"),
        (f"less than {little}", "ram_directions", "`ram_plus` with `overlap_power: 0.5`"),
    ]
