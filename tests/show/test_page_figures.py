"""What the page's bars and maps show."""

from __future__ import annotations

import re
from typing import Any

import page_records as records
import pytest
from page_records import PAPER, Sketch
from pages import EIGHT, RECORDS, plots

from mergekit_ram.names import labels
from mergekit_ram.show.layer_map import OUTSIDE, LayerMap
from mergekit_ram.show.page import render_page


def test_bars_show_density_and_shares_of_the_overlap_degree():
    record = RECORDS["inspection"]
    found = plots(record)
    (density,) = found["density"]["data"]
    assert density["x"] == [agent.density for agent in record.agents]
    alone, one, two = found["overlap-degree"]["data"]
    assert [alone["name"], one["name"], two["name"]] == [
        "alone",
        "with 1 other",
        "with 2 others",
    ]
    assert {trace["base"] for trace in (alone, one, two)} == {None}  # else they are not stacked
    for number, sketch in enumerate(PAPER):
        bars = [100 * trace["x"][number] for trace in (alone, one, two)]
        assert bars == pytest.approx(sketch.degree, abs=0.01)


def test_no_two_bars_or_curves_of_a_figure_differ_by_colour_alone():
    for name, plot in plots(RECORDS["eight"]).items():
        for kind, tell in (
            ("bar", lambda trace: str(trace["marker"].get("pattern"))),
            ("scatter", lambda trace: str((trace.get("line", {}).get("dash"), _symbol(trace)))),
        ):
            told = [tell(trace) for trace in plot["data"] if trace["type"] == kind]
            # Parts of a stacked bar are told apart by their order, which the legend has too.
            if not name.startswith("rescale") and name != "overlap-degree":
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
    assert "opposite signs 49.00 %" in matrix["hovertext"][0][2]


def test_what_a_merge_does_not_count_is_said():
    (missing,) = re.findall(
        r'<p class="missing">(.*?)</p>', render_page(RECORDS["merge"]), re.DOTALL
    )
    assert "inspect</code> on the configuration adds overlaps of pairs" in missing
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


def test_bars_of_what_is_kept():
    record = RECORDS["inspection"]
    retained = {trace["name"]: trace["x"] for trace in plots(record)["retained"]["data"]}
    assert retained == {
        "by mean": [agent.retained_mean for agent in record.agents],
        "by ram": [agent.retained_ram for agent in record.agents],
        "by ram_plus": [agent.retained_ram_plus for agent in record.agents],
    }
    meant, stored = plots(record)["realised"]["data"]
    assert meant["base"] == stored["base"] == 1.0
    assert meant["x"] == pytest.approx([0.2, 0.1451, 0.1105], abs=1e-4)
    assert meant["text"] == ["1.200", "1.145", "1.111"]
    assert stored["x"] == pytest.approx([0.12, 0.11, 0.10])


def test_what_is_configured_has_bars_where_it_is_neither_method():
    record = RECORDS["inspection"]
    agents = tuple(agent.model_copy(update={"retained": 0.9}) for agent in record.agents)
    changed = record.model_copy(update={"agents": agents})
    configured = plots(changed)["retained"]["data"][-1]
    assert configured["name"] == "as configured"
    assert configured["x"] == [0.9] * 3


def test_a_factor_that_differs_by_tensor_has_no_bar():
    record = RECORDS["inspection"]
    first, *others = record.agents
    changed = first.model_copy(update={"rescale": (1.0, 2.0)})
    meant, _ = plots(record.model_copy(update={"agents": (changed, *others)}))["realised"]["data"]
    assert meant["x"][0] is None
    assert None not in meant["x"][1:]


def test_the_maps_of_all_agents_have_one_scale_and_the_order_of_the_model():
    record = RECORDS["eight"]
    plot = plots(record)["layers"]
    assert len(plot["data"]) == 2 * len(EIGHT)
    shown = [trace for trace in plot["data"] if trace.get("visible") is not False]
    assert len(shown) == len({(t["xaxis"], t["yaxis"]) for t in shown}) == len(EIGHT)
    values = [value for trace in shown for row in trace["z"] for value in row if value is not None]
    assert {(trace["zmin"], trace["zmax"]) for trace in shown} == {(0, max(values))}
    titles = {note["text"] for note in plot["layout"]["annotations"]}
    assert titles == set(labels([sketch.model for sketch in EIGHT]))


def test_the_maps_of_many_agents_stand_in_rows():
    nine = tuple(Sketch(f"agent-{n}", 0.1, (50.0, *[5.0] * 8)) for n in range(9))
    plot = plots(records.inspection(nine))["layers"]
    assert [trace["visible"] for trace in plot["data"]] == [True] * 9 + [False] * 9
    assert plot["layout"]["grid"]["rows"] == 3


def test_one_agent_has_no_empty_panel_and_no_axis_beyond_what_can_be():
    record = records.inspection((Sketch("./agents/coder", 0.99, (100.0,)),))
    found = plots(record)
    assert found.keys() == {"density", "layers", "epsilon-density", "retained"}
    assert found["epsilon-density"]["layout"]["yaxis"]["range"][1] <= 1.03
    axis = found["density"]["layout"]["xaxis"]
    assert axis["tickvals"][-1] == 1.0 < axis["range"][1] <= 1.03
    assert "overlaps of pairs" not in render_page(record)


def test_a_colour_of_an_agent_is_no_methods():
    found = plots(RECORDS["eight"])
    agents = {trace["line"]["color"] for trace in found["epsilon-density"]["data"]}
    assert set(found["density"]["data"][0]["marker"]["color"]) == agents
    assert len(agents) == len(EIGHT)
    others = [
        {trace["marker"]["color"] for trace in found[name]["data"]}
        for name in ("overlap-degree", "retained", "realised")
    ]
    every = [*agents, *(colour for colours in others for colour in colours)]
    assert len(set(every)) == len(every)
