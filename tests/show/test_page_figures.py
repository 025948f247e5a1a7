"""What the page's bars and maps show."""

from __future__ import annotations

import re
from typing import Any

import page_records as records
import pytest
from page_records import PAPER
from pages import EIGHT, RECORDS, plots

from mergekit_ram.show.page import render_page
from mergekit_ram.show.page.layer_map import OUTSIDE, LayerMap


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
    assert "opposite signs 49.00 %" in matrix["hovertext"][0][2]


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
