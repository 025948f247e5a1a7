"""From counts to ρ_t and λ_t."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergekit_ram.overlap import AgentCounts, AgentOverlap, OverlapStatistics, TensorOverlap


def agent(*overlap_degree: int, parameters: int = 1_000_000) -> AgentOverlap:
    return AgentOverlap(model="a", overlap_degree=overlap_degree, parameters=parameters)


@pytest.mark.parametrize(
    ("name", "percentages", "ratio", "rescale"),
    [
        ("coding", (6.3, 49.1, 44.6), 14.9, 1.200),
        ("tool", (40.8, 56.1, 3.1), 1.45, 1.145),
        ("memory", (47.5, 49.9, 2.6), 1.11, 1.111),
    ],
)
def test_the_papers_overlaps_give_the_papers_factors(name, percentages, ratio, rescale):
    paper_agent = agent(*(round(1000 * percentage) for percentage in percentages))
    assert paper_agent.overlap_unique_ratio == pytest.approx(ratio, rel=5e-3)
    assert paper_agent.rescale(r=0.1, alpha=2.0) == pytest.approx(rescale, abs=5e-4)


def test_without_unique_parameters_the_ratio_is_infinite_and_the_factor_clipped():
    assert agent(0, 5, 0).overlap_unique_ratio == math.inf
    assert agent(0, 5, 0).rescale(r=0.1, alpha=2.0) == 1.2
    assert agent(0, 5, 0).rescale(r=0.0, alpha=2.0) == 1.0


def test_an_agent_that_changed_nothing_is_not_rescaled():
    assert agent(0, 0).overlap_unique_ratio == 0.0
    assert agent(0, 0).rescale(r=0.1, alpha=2.0) == 1.0
    assert agent().density == 0.0


def test_a_model_without_parameters_has_density_zero():
    assert agent(0, parameters=0).density == 0.0


degrees = st.lists(st.integers(0, 10**13), min_size=1, max_size=5)


@given(degrees)
def test_active_is_shared_plus_unique(degree):
    counts = AgentCounts(model="a", overlap_degree=tuple(degree))
    assert counts.active == counts.shared + counts.unique == sum(degree)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), degrees, min_size=1), max_size=6))
def test_sums_run_over_all_tensors_and_over_agents_by_name(rows):
    statistics = OverlapStatistics(
        tensors=tuple(
            TensorOverlap(
                name=str(number),
                numel=7,
                agents=tuple(AgentCounts(model=m, overlap_degree=tuple(d)) for m, d in row.items()),
            )
            for number, row in enumerate(rows)
        )
    )
    assert statistics.parameters == 7 * len(rows)
    for found in statistics.agents:
        assert found.active == sum(sum(row[found.model]) for row in rows if found.model in row)
        assert found.unique == sum(row[found.model][0] for row in rows if found.model in row)
        assert statistics.agent(found.model) is found


def test_json_holds_all_sums_and_reads_back():
    statistics = OverlapStatistics(
        tensors=(
            TensorOverlap(
                name="w", numel=10, agents=(AgentCounts(model="a", overlap_degree=(0, 3)),)
            ),
        )
    )
    text = statistics.model_dump_json()
    assert OverlapStatistics.model_validate_json(text) == statistics
    (found,) = json.loads(text)["agents"]
    assert found == {
        "model": "a",
        "overlap_degree": [0, 3],
        "parameters": 10,
        "active": 3,
        "unique": 0,
        "shared": 3,
        "density": 0.3,
        "overlap_unique_ratio": None,
    }


def test_statistics_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        agent(1).model = "b"


def test_two_agents_of_one_name_are_refused():
    twice = (AgentCounts(model="a", overlap_degree=(1,)),) * 2
    with pytest.raises(ValueError, match="tensor w has two agents of one name"):
        TensorOverlap(name="w", numel=1, agents=twice)


def test_an_agent_that_was_not_counted_is_named():
    with pytest.raises(KeyError, match=r"b was not counted; counted were \[\]"):
        OverlapStatistics(tensors=()).agent("b")


def test_the_module_imports_neither_torch_nor_mergekit():
    code = (
        "import sys, mergekit_ram.overlap\n"
        "print({'torch', 'mergekit', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr
