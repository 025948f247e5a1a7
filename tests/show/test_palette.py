"""Every colour of the page can be told from what it stands on, by day and by night."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

import mergekit_ram
from mergekit_ram.show import charts

TEXT = 4.5
MARKS = 3.0

STYLE = (Path(mergekit_ram.__file__).parent / "show" / "page.css").read_text(encoding="utf-8")
DAY, NIGHT = (
    dict(re.findall(r"--(\w+): #(\w{6});", part))
    for part in STYLE.split("prefers-color-scheme: dark")
)
BOTH = pytest.mark.parametrize("page", [DAY, NIGHT], ids=["day", "night"])

Colour = tuple[float, ...]


def colour(text: str) -> Colour:
    """Red, green and blue of a hexadecimal number."""
    digits = text.removeprefix("#")
    return tuple(int(digits[place : place + 2], 16) for place in (0, 2, 4))


def seen(shade: str, page: dict[str, str]) -> Colour:
    """A shade as it is seen on the panel, which it lets through."""
    *mixed, opacity = map(float, re.findall(r"[\d.]+", shade))
    ground = colour(page["panel"])
    return tuple(opacity * a + (1 - opacity) * b for a, b in zip(mixed, ground, strict=True))


def luminance(found: Colour) -> float:
    """Of WCAG 2."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in found)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    lights = sorted(map(luminance, (one, other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def series() -> list[str]:
    """Shades of series and of the ends of a map."""
    kinds = (charts.DEGREES, charts.METHODS, charts.FACTORS)
    found = [charts.shades(kind, number) for kind in kinds for number in range(1, 9)]
    scale = charts.heat([], [], [], 1.0)["colorscale"]
    return [*chain(*found), *(shade for _, shade in scale)]


def test_the_measure_is_that_of_the_guidelines():
    assert contrast(colour("ffffff"), colour("000000")) == pytest.approx(21)
    assert contrast(colour("ffffff"), colour("777777")) == pytest.approx(4.48, abs=0.01)


@BOTH
def test_text_is_read_on_page_and_panel(page):
    for text in ("ink", "soft", "mark"):
        for ground in ("paper", "panel"):
            assert contrast(colour(page[text]), colour(page[ground])) >= TEXT, text


@BOTH
def test_marks_and_edges_are_seen_on_the_panel(page):
    for mark in (*charts.AGENTS, charts.GUIDE):
        assert contrast(colour(mark), colour(page["panel"])) >= MARKS, mark


@BOTH
def test_digits_are_read_on_bars_and_maps(page):
    for shade in series():
        assert contrast(colour(page["ink"]), seen(shade, page)) >= TEXT, shade


def test_a_colour_has_one_meaning():
    kinds = (charts.DEGREES, charts.METHODS, charts.FACTORS, charts.CELLS)
    used = [*map(colour, charts.AGENTS), colour(charts.GUIDE), *kinds]
    assert len(set(used)) == len(used)
