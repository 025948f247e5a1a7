"""Every document renders as it was meant, and leads to what exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from document_blocks import ROOT
from markdown_check import anchors, problems

DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob(".github/**/*.md"),
        ROOT / "examples" / "agents" / "README.md",
        ROOT / "benchmarks" / "README.md",
        ROOT / "benchmarks" / "agents" / "RESULTS.md",
    ]
)

EXPECTED = {
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *(
        f"docs/{name}.md"
        for name in ("methods", "inspect", "compatibility", "large", "python", "speed", "results")
    ),
    "examples/agents/README.md",
    "benchmarks/README.md",
}


def test_no_document_is_missing():
    found = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert found >= EXPECTED, EXPECTED - found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_and_links_hold(path):
    assert problems(path) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |\n", "belongs to no table: | 3 | 4 |"),
        ("| a | b |\n|---|---|\n| 1 |\n", "line 3 has 1 cells, its table 2"),
        ("| a | b |\n|---|---|\n| 1 | `x|y` |\n", "line 3 has 3 cells, its table 2"),
        ("| a | b |\n|---|\n| 1 | 2 |\n", "belongs to no table: | a | b |"),
        ("[there](other.md)\n", "other.md does not exist"),
        ("![seen](other.png)\n", "other.png does not exist"),
        ("# One\n\n[there](#two)\n", "#two: no such heading"),
        ("[there][two]\n", "a link that is none: [there][two]"),
        ("```sh\nls\n", "line 1 opens a block that is never closed"),
    ],
)
def test_what_is_broken_is_found(text: str, problem: str, tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(text)
    found = problems(path)
    assert found, text
    assert problem in found[0]


def test_what_is_whole_is_left_alone(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(
        "# What a `ram` does, and why\n\n| a | b |\n|---|:-:|\n| `x \\| y` | |\n\n"
        "[up](#what-a-ram-does-and-why), [out](https://example.org), [here](page.md)\n"
    )
    assert problems(path) == []


def test_headings_of_one_name_have_anchors_of_their_own():
    assert anchors("# A b\n\n## A b\n\n## C's & d\n") == {"a-b", "a-b-1", "cs--d"}


def test_the_readme_fits_on_a_few_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
