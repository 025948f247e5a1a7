"""CONTRIBUTING.md leads to where things are."""

from __future__ import annotations

import ast
import re

import pytest
from document_blocks import ROOT, document

TEXT = document("CONTRIBUTING.md")
PATH = re.compile(
    r"`((?:mergekit_ram|tests|docs|examples|\.ci)/[\w./-]*|[\w-]+\.(?:toml|md|cff|py))`"
)
ROWS = re.findall(r"^\| ([^|]+) \| `([\w/.]+)` \| (?:`(\w+)` )?\|$", TEXT, re.MULTILINE)


def test_every_path_that_it_names_exists():
    named = set(PATH.findall(TEXT)) - {"look.py", "host.py", "overlap.py", "__init__.py"}
    assert len(named) > 30
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize(("what", "path", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_every_name_is_defined_in_the_file_beside_it(what: str, path: str, name: str):
    tree = ast.parse(document(path))
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    assert not name or name in defined, what


def test_what_is_most_looked_for_is_there():
    places = {what: path for what, path, _ in ROWS}
    assert places["the formula of λ"] == "mergekit_ram/overlap.py"
    assert places["the test for NaN and infinity"] == "mergekit_ram/kernels/blocks.py"
    assert places["the order of tasks"] == "mergekit_ram/plan/tasks.py"
    assert places["the JSON schema"] == "mergekit_ram/record/schema.py"
    assert places["the colour of agent 2"] == "mergekit_ram/show/charts.py"


def test_the_ladder_is_that_of_the_linter():
    table = TEXT.split("## The ladder of rooms")[1].split("\n## ")[0]
    shown = re.findall(r"`mergekit_ram/(\w+)(?:\.py|/)`", table)
    layers = document("pyproject.toml").split("\nlayers = [\n")[1].split("\n]\n")[0]
    assert shown == re.findall(r"\w+", layers)


def test_files_of_tests_have_names_of_their_own():
    """Of two that have one name pytest imports but one."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
