"""What the page's curves show, and the intervals of a sample."""

from __future__ import annotations

import math
import re
from typing import Any

import page_records as records
import pytest
from page_records import Sketch
from pages import RECORDS, captions, plots

from mergekit_ram.show.page import render_page


def test_curves_over_epsilon_mark_the_records_own():
    record = RECORDS["inspection"]
    assert record.thresholds is not None
    found = plots(record)
    for field in ("density", "unique_share", "overlap_unique_ratio", "rescale"):
        plot = found[f"epsilon-{field.replace('_', '-')}"]
        assert plot["layout"]["xaxis"]["type"] == "log"
        (line,) = plot["layout"]["shapes"]
        assert line["x0"] == line["x1"] == records.EPSILON
        for number, trace in enumerate(plot["data"]):
            assert trace["x"] == list(records.THRESHOLDS)
            agents = [threshold.agents[number] for threshold in record.thresholds]
            assert trace["y"] == [getattr(agent, field) for agent in agents]


def test_an_epsilon_of_zero_is_left_to_the_table():
    record = RECORDS["inspection"]
    assert record.thresholds is not None
    first, *others = record.thresholds
    zero = first.model_copy(update={"epsilon": 0.0})
    changed = record.model_copy(update={"thresholds": (zero, *others)})
    assert plots(changed)["epsilon-density"]["data"][0]["x"] == [1e-5, 1e-4]
    assert "ε = 0 has no place" in captions(changed)["epsilon-density"]
    assert "ε = 0 has no place" not in captions(record)["epsilon-density"]


def at(trace: dict[str, Any], x: float) -> float:
    value: float = trace["y"][trace["x"].index(x)]
    return value


@pytest.mark.parametrize("name", ["rescale-r", "rescale-alpha"])
def test_curves_of_the_factor_pass_through_the_papers_figures(name):
    plot = plots(RECORDS["merge"])[name]
    present = records.R if name == "rescale-r" else records.ALPHA
    curves = plot["data"]
    expected = pytest.approx([1.200, 1.145, 1.111], abs=1e-3)
    assert [at(curve, present) for curve in curves] == expected
    for curve in curves:
        marked = [x for x, size in zip(curve["x"], curve["marker"]["size"], strict=True) if size]
        assert marked == [present]
    assert all(at(curve, 0.0) == 1.0 for curve in curves)
    (line,) = plot["layout"]["shapes"]
    assert line["x0"] == present


def test_an_infinite_ratio_rises_without_end():
    record = RECORDS["eight"]
    assert record.agents[0].overlap_unique_ratio is None
    curve = plots(record)["rescale-alpha"]["data"][0]
    assert curve["y"] == pytest.approx([1 + records.R * alpha for alpha in curve["x"]])
    assert "∞" in render_page(record)


def test_ram_is_drawn_at_the_defaults_of_ram_plus():
    record = records.merge(r=None, alpha=None, method="ram")
    found = captions(record)
    assert "defaults of ram_plus, r = 0.1 and α = 2" in found["rescale-r"]
    assert "defaults" not in captions(RECORDS["merge"])["rescale-r"]
    assert [line["x0"] for line in plots(record)["rescale-r"]["layout"]["shapes"]] == [0.1]


def test_of_settings_that_differ_by_tensor_the_largest_is_drawn():
    record = records.merge(r=(0.05, 0.1), alpha=(0.5, 2.0))
    plot, caption = plots(record)["rescale-r"], captions(record)["rescale-r"]
    assert [line["x0"] for line in plot["layout"]["shapes"]] == [0.1]
    assert "r differs by tensor, 0.05 to 0.1: the largest is drawn." in caption
    assert "α differs by tensor" in caption
    assert "Here α = 2." in caption


def test_a_sample_says_estimate_everywhere_and_draws_its_intervals():
    record = RECORDS["sampled"]
    page = render_page(record)
    assert "an estimate</title>" in page
    assert "Every figure is an estimate" in page
    assert all("estimate" in caption for caption in captions(record).values())
    found = plots(record)
    for figure, axis in (("density", "error_x"), ("epsilon-density", "error_y")):
        trace = found[figure]["data"][0]
        values = trace[axis[-1]]
        assert trace[axis]["array"] == pytest.approx([0.05 * value for value in values])
        assert trace[axis]["arrayminus"] == pytest.approx([0.05 * value for value in values])
    assert "95 %" in found["pairs"]["data"][0]["hovertext"][0][1]
    assert "95 %" in found["density"]["data"][0]["hovertext"][0]
    assert "<small>95 %:" in page


def test_what_was_counted_whole_is_no_estimate():
    page = render_page(RECORDS["inspection"])
    body = page.partition("<body>")[2].partition("<script>")[0]
    assert "estimate" not in body
    assert re.search(r"(?<![\d.])95 %", body) is None


def test_an_interval_without_end_has_no_bar():
    record = RECORDS["sampled"]
    first, *others = record.agents
    endless = first.model_copy(update={"interval": {"density": (0.0, math.inf)}})
    changed = record.model_copy(update={"agents": (endless, *others)})
    error = plots(changed)["density"]["data"][0]["error_x"]
    assert error["array"][0] == error["arrayminus"][0] == 0.0
    assert error["array"][1] > 0.0


def test_the_curve_over_alpha_reaches_the_largest_finite_ratio():
    record = RECORDS["merge"]
    largest = max(agent.overlap_unique_ratio for agent in record.agents)
    plot = plots(record)["rescale-alpha"]
    assert plot["data"][0]["x"][-1] >= largest
    assert plot["layout"]["xaxis"]["range"][1] >= largest
    assert plot["data"][0]["y"][-1] == pytest.approx(1 + records.R * largest)


def test_a_ratio_far_away_does_not_squeeze_the_axis():
    sketches = (Sketch("one", 0.9, (0.1, 99.9)), Sketch("two", 0.9, (50.0, 50.0)))
    record = records.merge(sketches)
    assert record.agents[0].overlap_unique_ratio > 900
    plot = plots(record)["rescale-alpha"]
    assert plot["layout"]["xaxis"]["range"] == [0, 40.0]
    assert at(plot["data"][0], records.ALPHA) == pytest.approx(1.2)


def test_numbers_do_not_stand_upon_intervals():
    (density,) = plots(RECORDS["sampled"])["density"]["data"]
    assert density["text"] is None
    (density,) = plots(RECORDS["inspection"])["density"]["data"]
    assert all(text.endswith(" %") for text in density["text"])
