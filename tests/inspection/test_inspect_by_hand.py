"""A λ that is given by hand, in all that an inspection says of it."""

from __future__ import annotations

from typing import Any

import pytest
from inspecting import inspected
from models import Trio

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.curves import over_epsilon
from mergekit_ram.show.tables import threshold_tables

QUICK = ("--no-realised", "--no-directions")
BY_TENSOR = [{"filter": "mlp", "value": 1.5}, {"value": 1.25}]


def swept(trio: Trio, method: str = "ram_plus", **parameters: Any) -> OverlapRecord:
    config = trio.config(method, parameters=parameters)
    return inspected(config, trio.folder, "--epsilon", "1e-3", *QUICK)


def by_threshold(record: OverlapRecord) -> list[list[Any]]:
    assert record.thresholds is not None
    return [[agent.rescale for agent in found.agents] for found in record.thresholds]


def codes(record: OverlapRecord) -> set[str]:
    return {finding.code for finding in record.findings}


def test_a_factor_by_hand_is_that_at_every_threshold(trio: Trio):
    record = swept(trio, rescale=1.5)
    assert [agent.rescale for agent in record.agents] == [1.5] * 3
    assert by_threshold(record) == [[1.5] * 3] * 2
    (table,) = threshold_tables(record)
    assert {row[-1].text for row in table.rows} == {"1.500"}


def test_a_factor_by_hand_of_one_agent_leaves_the_others(trio: Trio):
    config = trio.config("ram_plus")
    config["models"][1]["parameters"] = {"rescale": 1.5}
    record = inspected(config, trio.folder, "--epsilon", "1e-3", *QUICK)
    plain = swept(trio)
    expected = [list(row) for row in by_threshold(plain)]
    for row in expected:
        row[1] = 1.5
    assert by_threshold(record) == expected
    # At the merge's own ε both tables say the same.
    assert expected[0] == [agent.rescale for agent in record.agents]


def test_factors_by_tensor_are_told_as_in_the_first_table(trio: Trio):
    record = swept(trio, rescale=BY_TENSOR)
    assert [agent.rescale for agent in record.agents] == [(1.25, 1.5)] * 3
    assert by_threshold(record) == [[(1.25, 1.5)] * 3] * 2
    (table,) = threshold_tables(record)
    assert {row[-1].text for row in table.rows} == {"1.250 to 1.500"}


def test_no_curve_is_drawn_of_factors_by_tensor(trio: Trio):
    config = trio.config("ram_plus")
    config["models"][1]["parameters"] = {"rescale": BY_TENSOR}
    record = inspected(config, trio.folder, "--epsilon", "1e-3", *QUICK)
    *_, panel = over_epsilon(record)
    assert panel.name == "epsilon-rescale"
    first, second, third = panel.plot["data"]
    assert second["y"] == [None, None]
    assert None not in [*first["y"], *third["y"]]
    whole = swept(trio, rescale=BY_TENSOR)
    assert "epsilon-rescale" not in {panel.name for panel in over_epsilon(whole)}


@pytest.mark.parametrize("method", ["ram", "ram_directions", "linear"])
def test_other_methods_are_looked_at_as_by_ram_plus_at_every_threshold(trio: Trio, method):
    record = swept(trio, method, **({"weight": 0.5} if method == "linear" else {}))
    assert by_threshold(record)[0] == [agent.rescale for agent in record.agents]


def test_a_factor_by_hand_is_not_clipped(trio: Trio):
    assert "all-clipped" in codes(swept(trio, alpha=0.01))
    record = swept(trio, alpha=0.01, rescale=1.5)
    assert not any(agent.clipped for agent in record.agents)
    assert "all-clipped" not in codes(record)


def test_where_one_agent_is_by_hand_not_all_get_the_same(trio: Trio):
    config = trio.config("ram_plus", parameters={"alpha": 0.01})
    # The last one is by hand in some tensors alone, and clipped in the others.
    config["models"][2]["parameters"] = {"rescale": [{"filter": "mlp", "value": 1.5}]}
    record = inspected(config, trio.folder, *QUICK)
    assert [agent.clipped for agent in record.agents] == [True, True, True]
    assert record.agents[2].rescale == pytest.approx((1.001, 1.5))
    assert "all-clipped" not in codes(record)


def test_a_factor_below_one_is_inside_its_panel(trio: Trio):
    record = swept(trio, rescale=0.5)
    *_, panel = over_epsilon(record)
    bottom, top = panel.plot["layout"]["yaxis"]["range"]
    assert bottom < 0.5 < 1.0 < top
