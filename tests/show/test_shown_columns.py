"""Terminal, page and documents name the same columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import RECORDS

from mergekit_ram.show.page import render_page
from mergekit_ram.show.tables import tables
from mergekit_ram.show.terminal import as_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "inspect.md"


def test_every_column_is_explained_in_the_document():
    shown = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", DOCUMENT.read_text(), re.MULTILINE))
    for table in tables(RECORDS["inspection"]):
        for column in table.columns:
            if column.title not in ("agent", "and"):
                assert shown[column.title] == column.meaning


@pytest.mark.parametrize("name", ["inspection", "merge", "sampled", "eight"])
def test_the_page_has_the_terminals_columns_and_explains_each(name):
    page = render_page(RECORDS[name])
    text = as_text(RECORDS[name])
    for table in tables(RECORDS[name]):
        assert table.heading in text
        for column in table.columns:
            assert column.title in text
            if column.title not in ("tensor", "layer", "changed"):  # the layer map has these
                assert re.search(rf'<th scope="col"[^>]*>{re.escape(column.title)}</th>', page)
                assert f"<dt>{column.title}</dt><dd>" in page
    titles = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page)
    explained = re.findall(r"<dt>(.*?)</dt><dd>", page)
    assert set(titles) <= set(explained)


def test_a_figure_is_written_in_one_way_in_a_column():
    for line in as_text(RECORDS["eight"]).split("By threshold")[1].splitlines()[3:-2]:
        cells = re.split(r"  +", line.strip())
        if len(cells) == 6:
            assert re.fullmatch(r"\d+\.\d\d %|< 0\.01 %", cells[2])
            assert re.fullmatch(r"[\d,]+\.\d{3}|∞", cells[4])
            assert re.fullmatch(r"\d\.\d{3}", cells[5])
