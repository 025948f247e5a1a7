"""The page as a browser shows it."""

from __future__ import annotations

import picture
import pytest
from pages import ALWAYS, HOSTILE, INSPECTED, RECORDS, plots

from mergekit_ram.names import labels


@pytest.mark.parametrize("name", RECORDS)
def test_every_figure_is_drawn_without_a_complaint_or_a_request(name, browser, pages):
    browser.open(pages[name])
    drawn = browser.drawn()
    assert drawn.keys() == (ALWAYS if name == "merge" else INSPECTED)
    described = plots(RECORDS[name])
    for figure, traces in drawn.items():
        expected = [t for t in described[figure]["data"] if t.get("visible") is not False]
        assert len(traces) == len(expected) > 0, figure
        # An agent without any finite ρ has no curve of it.
        empty = [t for t in expected if "y" in t and set(t["y"]) == {None}]
        assert traces.count(0) == len(empty), figure
    if (pairs := RECORDS[name].pairwise) is not None:
        assert f"{pairs[0].jaccard:.3f}" in browser.run(
            "return document.querySelector('#pairs .heatmaplayer').textContent"
        )
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["sampled", "eight"])
def test_a_narrow_screen_scrolls_downwards_only(name, browser, pages):
    browser.open(pages[name], width=400)
    scroll, client = browser.run(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth];"
    )
    assert 380 < client <= 400
    assert scroll <= client
    assert all(any(traces) for traces in browser.drawn().values())


def test_names_stay_text(browser, pages):
    browser.open(pages["hostile"])
    title = browser.run("return document.title")
    assert title.startswith("What the agents changed")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    shown = browser.run("return document.querySelector('#density .plot').textContent")
    for label in labels([sketch.model for sketch in HOSTILE]):
        assert label in shown


def test_the_lists_choose_the_map(browser, pages):
    browser.open(pages["inspection"])
    choose = """
        const [quantity] = document.querySelectorAll("#layers select");
        quantity.selectedIndex = 1;
        quantity.dispatchEvent(new Event("change"));
        const plot = document.querySelector("#layers .plot");
        return [plot.data.map((trace) => trace.visible), plot.data[5].z];
    """
    visible, values = browser.run(choose)
    assert visible == [False] * 3 + [True] * 3
    assert browser.drawn()["layers"] == [1] * 3
    shares = [value for row in values for value in row if value is not None]
    assert shares == pytest.approx([0.475] * len(shares), abs=2e-3)


def test_a_dark_surrounding_changes_the_figures_ink(browser, pages):
    ink = """
        const label = document.querySelector("#density .plot .ytick text");
        return [getComputedStyle(document.body).color, getComputedStyle(label).fill];
    """
    found = {}
    for scheme in ("light", "dark"):
        browser.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        browser.open(pages["merge"])
        page, figure = browser.run(ink)
        assert page == figure
        found[scheme] = figure
    assert found["light"] != found["dark"]


@pytest.mark.parametrize("name", ["sampled", "eight"])
def test_tables_and_maps_fit_a_usual_screen(name, browser, pages):
    browser.open(pages[name], width=1280)
    wide = browser.run(
        "return [...document.querySelectorAll('.scroll')]"
        ".filter((part) => part.scrollWidth > part.clientWidth + 1).map((part) => part.innerText);"
    )
    assert wide == []


def test_the_pair_map_of_three_fits_a_narrow_screen(browser, pages):
    browser.open(pages["inspection"], width=400)
    scroll, client = browser.run(
        "const part = document.querySelector('#pairs .scroll');"
        "return [part.scrollWidth, part.clientWidth];"
    )
    assert scroll <= client


def test_the_first_figures_are_saved_as_a_picture(browser, pages, tmp_path):
    picture.take(browser, pages["inspection"], tmp_path / "overlap.png")
    content = (tmp_path / "overlap.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") > 1000
