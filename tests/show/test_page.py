"""The page of a record, as a browser shows it and as it is written."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_records as records
import pytest
from browser import Browser
from page_records import PAPER, Sketch

from mergekit_ram.errors import InputError, MissingExtraError
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.page import render_page, write_page
from mergekit_ram.show.page.layer_map import OUTSIDE, LayerMap
from mergekit_ram.show.page.wording import LABEL_LENGTH, labels

ALWAYS = {"density", "overlap-degree", "layers", "rescale-r", "rescale-alpha"}
INSPECTED = ALWAYS | {
    "pairs",
    "epsilon-density",
    "epsilon-unique-share",
    "epsilon-overlap-unique-ratio",
    "epsilon-rescale",
    "retained",
    "realised",
}

EIGHT = tuple(
    Sketch(f"team/agent-{n}-with-a-name-too-long-for-a-label", 0.02 * (n + 1), degree)
    for n, degree in enumerate([(0.0, *[10.0] * 7), *[(30.0 - n, *[10.0] * 7) for n in range(7)]])
)
"""The first has no unique parameter, so that its ρ is infinite."""

HOSTILE = (
    Sketch("<script>document.title='owned'</script>", 0.1, (50.0, 40.0, 10.0)),
    Sketch("</script><img src=x onerror=document.title='owned'>", 0.2, (50.0, 40.0, 10.0)),
    Sketch("a & b/<b>%{x}</b>", 0.3, (50.0, 40.0, 10.0)),
)

RECORDS = {
    "inspection": records.inspection(),
    "merge": records.merge(),
    "sampled": records.sampled(),
    "eight": records.inspection(EIGHT),
    "hostile": records.inspection(HOSTILE),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in RECORDS}
    for name, path in paths.items():
        write_page(RECORDS[name], path)
    return paths


def plots(record: OverlapRecord) -> dict[str, dict[str, Any]]:
    """What plotly is told to draw, by figure."""
    found = re.findall(
        r'<figure id="(.*?)">.*?<script type="application/json">(.*?)</script>',
        render_page(record),
        re.DOTALL,
    )
    return {name: json.loads(description) for name, description in found}


def captions(record: OverlapRecord) -> dict[str, str]:
    found = re.findall(
        r'<figure id="(.*?)">.*?<figcaption>(.*?)</figcaption>', render_page(record), re.DOTALL
    )
    return {name: html.unescape(caption) for name, caption in found}


# --- in the browser


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
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.complaints() == []


@pytest.mark.parametrize("name", RECORDS)
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
        const [agent, quantity] = document.querySelectorAll("#layers select");
        agent.selectedIndex = 2;
        quantity.selectedIndex = 1;
        quantity.dispatchEvent(new Event("change"));
        const plot = document.querySelector("#layers .plot");
        return [plot.data.map((trace) => trace.visible), plot.data[5].z];
    """
    visible, values = browser.run(choose)
    assert visible == [False] * 5 + [True]
    assert browser.drawn()["layers"] == [1]
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


# --- what the figures show


def test_bars_show_density_and_shares_of_the_overlap_degree():
    record = RECORDS["inspection"]
    found = plots(record)
    (density,) = found["density"]["data"]
    assert density["x"] == [agent.density for agent in record.agents]
    alone, one, two = found["overlap-degree"]["data"]
    assert [alone["name"], one["name"], two["name"]] == [
        "alone",
        "with one other",
        "with two others",
    ]
    for number, sketch in enumerate(PAPER):
        bars = [100 * trace["x"][number] for trace in (alone, one, two)]
        assert bars == pytest.approx(sketch.degree, abs=0.01)


def test_no_two_bars_or_curves_of_a_figure_differ_by_colour_alone():
    for name, plot in plots(RECORDS["eight"]).items():
        for kind, tell in (
            ("bar", lambda trace: str(trace["marker"]["pattern"]["shape"])),
            ("scatter", lambda trace: str((trace.get("line", {}).get("dash"), _symbol(trace)))),
        ):
            told = [tell(trace) for trace in plot["data"] if trace["type"] == kind]
            if not name.startswith("rescale"):
                assert len(set(told)) == len(told), name
    bars = plots(RECORDS["eight"])["density"]["data"][0]["marker"]["pattern"]["shape"]
    assert len(set(bars)) == len(EIGHT)


def _symbol(trace: dict[str, Any]) -> str | None:
    return trace.get("marker", {}).get("symbol")


def test_the_matrix_is_symmetric_and_has_numbers_in_its_cells():
    record = RECORDS["inspection"]
    assert record.pairwise is not None
    (matrix,) = plots(record)["pairs"]["data"]
    for row in range(3):
        assert matrix["z"][row][row] is None
        for column in range(3):
            assert matrix["z"][row][column] == matrix["z"][column][row]
    pair = record.pairwise[1]
    assert matrix["z"][0][2] == pair.jaccard
    assert f"{pair.both:,}" in matrix["text"][0][2]
    assert "cosine 0.02" in matrix["hovertext"][0][2]
    assert "sign conflicts 49 %" in matrix["hovertext"][0][2]


def test_what_the_record_lacks_is_said():
    page = render_page(RECORDS["merge"])
    (missing,) = re.findall(r'<p class="missing">(.*?)</p>', page, re.DOTALL)
    for lacking in ("overlaps of pairs", "other values of ε", "what is kept"):
        assert lacking in missing
    assert 'class="missing"' not in render_page(RECORDS["inspection"])


def test_the_map_sums_what_belongs_to_one_module():
    record = RECORDS["merge"]
    sums = LayerMap.of(record)
    assert sums.rows == ("0", "1", "2", "3", OUTSIDE)
    assert sums.modules == (
        "mlp.gate_proj",
        "mlp.up_proj",
        "self_attn.q_proj",
        "model.embed_tokens",
    )
    agent = record.agents[1].model
    cell = sums.cells[agent, "2", "self_attn.q_proj"]
    parts = [t for t in record.tensors if t.name.startswith("model.layers.2.self_attn.q_proj")]
    assert len(parts) == 2
    assert cell.numel == sum(tensor.numel for tensor in parts)
    assert cell.active == sum(tensor.agents[1].active for tensor in parts)
    assert cell.unique == sum(tensor.agents[1].unique for tensor in parts)
    table = sums.table(agent, lambda cell: cell.density)
    assert table[2][2] == cell.active / cell.numel
    assert table[2][3] is None
    assert table[4][:3] == [None] * 3


def test_the_layers_of_two_stacks_are_not_mixed():
    record = RECORDS["merge"]
    first = record.tensors[1]
    renamed = first.model_copy(update={"name": "visual.blocks.0.mlp.gate_proj.weight"})
    both = record.model_copy(update={"tensors": (renamed, *record.tensors)})
    rows = LayerMap.of(both).rows
    assert rows[:2] == ("visual.blocks.0", "model.layers.0")
    assert len(rows) == records.LAYERS + 2


def test_a_tensor_that_an_agent_lacks_counts_as_untouched():
    record = RECORDS["merge"]
    embedding, *layers = record.tensors
    lacking = embedding.model_copy(update={"agents": embedding.agents[1:]})
    cells = LayerMap.of(record.model_copy(update={"tensors": (lacking, *layers)})).cells
    cell = cells[record.agents[0].model, OUTSIDE, "model.embed_tokens"]
    assert (cell.density, cell.unique_share) == (0.0, None)


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
    curves, marks = plot["data"][:3], plot["data"][3:]
    expected = pytest.approx([1.200, 1.145, 1.111], abs=1e-3)
    assert [at(curve, present) for curve in curves] == expected
    assert [mark["y"] for mark in marks] == [[at(curve, present)] for curve in curves]
    assert [mark["x"] for mark in marks] == [[present]] * 3
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


def test_settings_that_differ_by_tensor_are_all_marked():
    record = records.merge(r=(0.05, 0.1), alpha=(0.5, 2.0))
    plot, caption = plots(record)["rescale-r"], captions(record)["rescale-r"]
    assert [line["x0"] for line in plot["layout"]["shapes"]] == [0.05, 0.1]
    assert plot["data"][3]["x"] == [0.05, 0.1]
    assert "r differs by tensor: 0.05, 0.1 are marked" in caption
    assert "α differs by tensor" in caption
    assert "at α = 2." in caption


def test_a_factor_set_by_hand_is_said():
    record = RECORDS["merge"]
    first, *others = record.agents
    by_hand = first.model_copy(update={"rescale": 1.5})
    changed = record.model_copy(update={"agents": (by_hand, *others)})
    said = f"set by hand, for {first.model}."
    assert said in captions(changed)["rescale-r"]
    assert "by hand" not in captions(record)["rescale-r"]


def test_bars_of_what_is_kept():
    record = RECORDS["inspection"]
    retained = {trace["name"]: trace["x"] for trace in plots(record)["retained"]["data"]}
    assert retained == {
        "mean of task vectors": [agent.retained_mean for agent in record.agents],
        "ram": [agent.retained_ram for agent in record.agents],
        "ram_plus": [agent.retained_ram_plus for agent in record.agents],
    }
    meant, stored = plots(record)["realised"]["data"]
    assert meant["x"] == pytest.approx([0.2, 0.1451, 0.1105], abs=1e-4)
    assert stored["x"] == pytest.approx([0.12, 0.11, 0.10])


def test_what_is_configured_has_bars_where_it_is_neither_method():
    record = RECORDS["inspection"]
    agents = tuple(agent.model_copy(update={"retained": 0.9}) for agent in record.agents)
    changed = record.model_copy(update={"agents": agents})
    configured = plots(changed)["retained"]["data"][-1]
    assert configured["name"] == "as configured"
    assert configured["x"] == [0.9] * 3


def test_a_factor_that_differs_by_tensor_is_averaged_over_unique_parameters():
    record = RECORDS["inspection"]
    model = record.agents[0].model
    first, *others = record.agents
    tensors = tuple(
        tensor.model_copy(
            update={
                "agents": (
                    tensor.agents[0].model_copy(update={"rescale": 1.0 + number % 2}),
                    *tensor.agents[1:],
                )
            }
        )
        for number, tensor in enumerate(record.tensors)
    )
    odd = sum(tensor.agents[0].unique for tensor in tensors[1::2])
    changed = record.model_copy(
        update={
            "agents": (first.model_copy(update={"rescale": (1.0, 2.0)}), *others),
            "tensors": tensors,
        }
    )
    assert changed.agents[0].model == model
    meant, _ = plots(changed)["realised"]["data"]
    assert meant["x"][0] == pytest.approx(odd / first.unique)


# --- samples


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


# --- the file


def test_the_tables_hold_the_agents_numbers_without_javascript():
    record = RECORDS["inspection"]
    body = render_page(record).partition("<figure")[0]
    for agent in record.agents:
        for number in (agent.active, agent.shared, agent.unique):
            assert f"<td>{number:,}</td>" in body
        assert f"<td>{agent.retained_ram:.4g}</td>" in body
    assert "1.2000, clipped" in body
    assert "α clips its λ." in body
    for fact in ("Qwen/Qwen2.5-7B-Instruct", "1e-05", "ram_plus", "mergekit 0.1.5", "bfloat16"):
        assert fact in body
    assert f"{record.parameters:,}" in body


def test_the_library_is_embedded_once_and_no_address_allowed():
    page = render_page(RECORDS["merge"])
    assert page.count("plotly.js v") == 1
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page.partition("<script>")[0]) == []


LONG = "a" * 11 + "…" + "a" * 11


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["./agents/add", "./agents/sort/"], ("add", "sort")),
        (["one/agent", "two/agent"], ("one/agent", "two/agent")),
        (["agent", "x/agent"], ("agent", "x/agent")),
        (
            ["a" * 40 + "1", "a" * 40 + "1"],
            ("1 aaaaaaaaaaa…aaaaaaaaaa1", "2 aaaaaaaaaaa…aaaaaaaaaa1"),
        ),
    ],
)
def test_labels_are_short_and_distinct(models, expected):
    assert labels(models) == expected
    assert all(len(label) <= LABEL_LENGTH + 2 for label in expected)


def test_a_page_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "missing" / "page.html"
    with pytest.raises(InputError, match=re.escape(str(path))):
        write_page(RECORDS["merge"], path)


def test_without_plotly_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith("mergekit_ram.show.page.figures")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtraError) as caught:
        write_page(RECORDS["merge"], tmp_path / "page.html")
    assert "pip install 'mergekit-ram[html]'" in caught.value.message
    assert "\n" not in caught.value.message
    assert not (tmp_path / "page.html").exists()


def test_only_a_page_loads_plotly():
    code = "import sys, mergekit_ram, mergekit_ram.show.page; sys.exit('plotly' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
