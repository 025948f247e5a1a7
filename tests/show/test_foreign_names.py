"""Names of models and tensors come from files: they are shown, and do nothing."""

from __future__ import annotations

import json
import logging

import page_records
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from page_records import Sketch

from mergekit_ram.cli import main
from mergekit_ram.errors import InputError
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.card import card_section
from mergekit_ram.show.page import write_page
from mergekit_ram.show.terminal import as_text
from mergekit_ram.text import as_code, in_markdown, visible

HOSTILE = (
    "\x1b[2J\x1b[31mred",
    "a\nb | c\r| d",
    "<script>alert(1)</script>",
    "[link](https://example.org) `code` *bold* $x$",
    "\u202egnirts\u2066 \x9b31m \u2028 \ud800",
    "back\\|slash &amp; </td>",
)


def hostile_record(**changes: object) -> OverlapRecord:
    degree = (100.0,) + (0.0,) * (len(HOSTILE) - 1)
    return page_records.merge(tuple(Sketch(name, 0.1, degree) for name in HOSTILE)).model_copy(
        update=changes
    )


def test_every_line_for_a_terminal_can_be_seen_whole():
    finding = page_records.Finding(code="x", text=f"{HOSTILE[0]} and {HOSTILE[1]}")
    record = hostile_record(base=HOSTILE[0], findings=(finding,))
    text = as_text(record)
    assert [line for line in text.splitlines() if not line.isprintable()] == []
    assert r"\x1b[2J" in text
    assert r"\u202e" in text
    # The second name holds line ends.
    assert not [line for line in text.splitlines() if line.startswith("b |")]
    assert r"a\nb | c\r| d" in text


def test_the_card_has_a_row_per_agent_and_shows_names_as_they_are():
    finding = page_records.Finding(code="x", text=f"{HOSTILE[1]} {HOSTILE[2]} has `r: 1`.")
    section = card_section(hostile_record(counts_from="a`b\n<i>", findings=(finding,)))
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(section)
    rows = [token for token in tokens if token.type == "tr_open"]
    assert len(rows) == 1 + len(HOSTILE)
    inline = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for token in inline for child in token.children or ()}
    assert kinds <= {"text", "text_special", "code_inline", "softbreak"}
    assert not [token for token in tokens if token.type == "html_block"]
    shown = "\n".join("".join(child.content for child in token.children or ()) for token in inline)
    for name in HOSTILE:
        assert " ".join(visible(name).split()) in shown


def test_the_page_holds_no_markup_from_names(tmp_path):
    path = tmp_path / "page.html"
    names = [name for name in HOSTILE if "\ud800" not in name]
    degree = (100.0,) + (0.0,) * (len(names) - 1)
    write_page(page_records.inspection(tuple(Sketch(n, 0.1, degree) for n in names)), path)
    text = path.read_text(encoding="utf-8")
    assert "<script>alert(1)" not in text
    assert "</td> " not in text


def test_json_on_a_terminal_is_visible_and_the_same(tmp_path):
    # No JSON holds half a character.
    record = page_records.merge().model_copy(update={"base": "\x9b31m\u202e\n\x1b"})
    text = record.to_json()
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(text)["base"] == record.base


def test_errors_are_one_visible_line(tmp_path):
    with pytest.raises(InputError, match=r"model \\x1b\[31m\\nx"):
        raise InputError("model \x1b[31m\nx: broken")
    folder = tmp_path / "\x1b[31m"
    folder.mkdir()
    result = CliRunner().invoke(main, ["inspect", str(folder)])
    assert r"\x1b[31m is a folder without ram_overlap.json" in result.output
    assert "\x1b" not in result.output


def test_log_lines_are_visible(caplog):
    logging.getLogger("mergekit_ram").warning("agent %s: %.1f %%", "\x1b[31m\nx", 2.0)
    assert [record.getMessage() for record in caplog.records] == [r"agent \x1b[31m\nx: 2.0 %"]


@given(text=st.text())
def test_whatever_a_name_is_it_can_be_seen(text):
    assert visible(text).isprintable()
    assert as_code(text).isprintable()
    assert not set("|<>\n`*") & set(in_markdown(text))
    if text.isprintable():
        assert visible(text) == text
    else:
        assert visible(text) != text
