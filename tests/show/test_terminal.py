"""A record as text, in a window of any width."""

from __future__ import annotations

import pytest
from pages import EIGHT, RECORDS

from mergekit_ram.names import labels
from mergekit_ram.show.tables import tables
from mergekit_ram.show.terminal import as_text


@pytest.mark.parametrize("name", ["inspection", "merge", "sampled", "eight"])
@pytest.mark.parametrize("columns", ["20", "80", "100", "300"])
def test_nothing_is_wider_than_the_window(name, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    text = as_text(RECORDS[name])
    assert max(map(len, text.splitlines())) <= max(80, int(columns))
    for table in tables(RECORDS[name]):
        assert all(column.title in text for column in table.columns)


def test_a_wide_window_has_each_table_in_one_piece(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    lines = as_text(RECORDS["eight"]).splitlines()
    assert len([line for line in lines if line.startswith("agent  ")]) == 5


def test_of_many_pairs_the_largest_overlaps_are_shown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    text = as_text(RECORDS["eight"])
    section = text.split("Where two agents meet\n")[1].split("\n\n")[0].splitlines()
    assert len(section) == 2 + 10 + 1
    names = labels([sketch.model for sketch in EIGHT])
    assert section[2].split()[:2] == [names[6], names[7]]
    assert section[-1].startswith("18 more")


def test_whole_names_stand_above_the_tables():
    head = as_text(RECORDS["eight"]).split("\n\n")[0]
    for sketch in EIGHT:
        assert head.count(sketch.model) == 1
