"""Every example of docs/python.md on records prints what its last lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from document_blocks import OFFLINE, ROOT, blocks, document

EXAMPLES = [
    block
    for block in blocks(document("docs/python.md"), "python")
    if "from mergekit_ram import" in block
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples are, and a merge of them."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "examples").symlink_to(ROOT / "examples")
    recipe = "examples/yaml/ram_plus.yml"
    run(folder, "-m", "mergekit.scripts.run_yaml", recipe, "merged", "--no-copy-tokenizer")
    return folder


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=OFFLINE)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_there_are_the_examples_that_are_tried_here():
    names = ("inspect(", "sample=", "epsilons=", "read_record(", "write_page(")
    assert all(any(name in example for example in EXAMPLES) for name in names)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_it_says(folder: Path, number: int):
    lines = EXAMPLES[number].splitlines()
    promised = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    assert promised
    assert run(folder, "-c", EXAMPLES[number]).splitlines() == promised
