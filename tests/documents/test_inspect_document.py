"""What docs/inspect.md shows is run again."""

from __future__ import annotations

import re

from document_blocks import ROOT, arguments_of, blocks, commands, document, run_ours

from mergekit_ram.cli import main

TEXT = document("docs/inspect.md")


def test_the_inspection_prints_what_is_shown():
    line = next(command for command in commands(TEXT) if command.startswith("mergekit-ram inspect"))
    (shown,) = (block for block in blocks(TEXT, "") if block.startswith("ram_plus over"))
    assert run_ours(arguments_of(line)) == shown


def test_the_page_is_made_by_the_command_that_is_shown(tmp_path):
    (line,) = (command for command in commands(TEXT) if "--html" in command)
    page = tmp_path / "overlap.html"
    run_ours([str(page) if word == "overlap.html" else word for word in arguments_of(line)])
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert (ROOT / "docs" / "overlap.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_of_options_names_options_of_the_command():
    table = TEXT.split("## Options")[1].split("\n## ")[0]
    shown = set(re.findall(r"^\| `(--[\w-]+)", table, re.MULTILINE))
    known = set()
    for option in main.commands["inspect"].params:
        known |= {*option.opts, *option.secondary_opts}
    assert len(shown) > 5
    assert shown <= known, shown - known
