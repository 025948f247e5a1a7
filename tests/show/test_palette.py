"""Every colour of the page can be told from what it stands on, by day and by night."""

from __future__ import annotations

import pytest

from mergekit_ram.show.page import palette
from mergekit_ram.show.page.palette import Colour

TEXT = 4.5
MARKS = 3.0
BOTH = pytest.mark.parametrize("time", ["day", "night"])


def luminance(colour: str) -> float:
    """Of WCAG 2."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in palette.channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour, time: str) -> float:
    lights = sorted(luminance(getattr(colour, time)) for colour in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def test_the_measure_is_that_of_the_guidelines():
    white, black = Colour("#ffffff", "#ffffff"), Colour("#000000", "#000000")
    assert contrast(white, black, "day") == pytest.approx(21)
    assert contrast(white, Colour("#777777", "#777777"), "day") == pytest.approx(4.48, abs=0.01)


@BOTH
def test_text_is_read_on_page_and_panel(time):
    for text in (palette.INK, palette.SOFT, palette.MARK):
        for ground in (palette.PAPER, palette.PANEL):
            assert contrast(text, ground, time) >= TEXT, text


@BOTH
def test_marks_are_seen_on_the_panel(time):
    marks = [*palette.AGENTS, *palette.METHODS, palette.MEANT, palette.STORED, palette.GUIDE]
    for number in range(1, 9):
        marks += palette.degrees(number)
    for mark in marks:
        assert contrast(mark, palette.PANEL, time) >= MARKS, mark


@BOTH
def test_digits_are_read_on_bars_and_maps(time):
    for number in range(1, 9):
        for shade in palette.degrees(number):
            assert contrast(palette.ON_DEGREE, shade, time) >= TEXT, shade
    first, last = palette.SCALE
    for step in range(11):
        shade = Colour(
            palette.between(first.day, last.day, step / 10),
            palette.between(first.night, last.night, step / 10),
        )
        assert contrast(palette.INK, shade, time) >= TEXT, shade


def test_a_colour_has_one_meaning():
    for number in range(1, 9):
        used = [
            *palette.AGENTS,
            *palette.METHODS,
            palette.MEANT,
            palette.STORED,
            palette.GUIDE,
            *palette.SCALE,
            *palette.degrees(number),
        ]
        for time in ("day", "night"):
            assert len({getattr(colour, time) for colour in used}) == len(used)
        # The page exchanges one for one.
        assert palette.nights(number).keys() >= {colour.day for colour in used}
