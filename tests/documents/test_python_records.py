"""Every example of docs/python.md on records prints what its last lines say."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from document_blocks import ROOT, blocks, chdir, document, printed_by
from mergekit.scripts import run_yaml

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
    with chdir(folder):
        arguments = ["examples/yaml/ram_plus.yml", "merged", "--no-copy-tokenizer", "--quiet"]
        result = CliRunner().invoke(run_yaml.main, arguments)
    assert result.exit_code == 0, result.output
    return folder


def test_there_are_the_examples_that_are_tried_here():
    names = ("inspect(", "sample=", "epsilons=", "read_record(", "write_page(")
    assert all(any(name in example for example in EXAMPLES) for name in names)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_it_says(folder: Path, number: int):
    lines = EXAMPLES[number].splitlines()
    promised = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    assert promised
    with chdir(folder):
        assert printed_by(EXAMPLES[number]).splitlines() == promised
