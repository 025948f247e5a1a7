"""The figures of ``mergekit-ram inspect`` against a naive reference and against real merges."""

from __future__ import annotations

import pytest
from inspecting import inspected
from models import Trio, merge_yaml
from reference import count, energies


def test_the_counts_are_those_of_the_reference(trio: Trio, tmp_path):
    record = inspected(trio.config("ram_plus"), tmp_path)
    expected = count(trio.base, trio.agents)
    assert record.parameters == expected.parameters
    for agent in record.agents:
        degree = expected.overlap_degree[agent.model]
        assert list(agent.overlap_degree) == degree
        assert (agent.active, agent.unique) == (sum(degree), degree[0])
        assert agent.density == sum(degree) / expected.parameters
        assert agent.overlap_unique_ratio == expected.ratio(agent.model)
        assert agent.rescale == expected.rescale(agent.model, 0.1, 2.0)
    for tensor in record.tensors:
        own = count(
            {tensor.name: trio.base[tensor.name]},
            {name: {tensor.name: weights[tensor.name]} for name, weights in trio.agents.items()},
        )
        assert {a.model: list(a.overlap_degree) for a in tensor.agents} == own.overlap_degree


def test_energies_angles_and_conflicts_are_those_of_the_reference(trio: Trio, tmp_path):
    record = inspected(trio.config("ram_plus"), tmp_path)
    expected = energies(trio.base, trio.agents)
    for agent in record.agents:
        name, rescale = agent.model, float(agent.rescale)
        e, u, s = expected.energy[name], expected.unique[name], expected.shared[name]
        assert agent.energy == pytest.approx(e, rel=1e-9)
        assert agent.unique_energy == pytest.approx(u, rel=1e-9)
        # The shared mean is taken in float32.
        assert agent.shared_energy == pytest.approx(s, rel=1e-5)
        assert agent.retained_ram == pytest.approx((u + s) / e, rel=1e-5)
        assert agent.retained_ram_plus == pytest.approx((rescale * u + s) / e, rel=1e-5)
        assert agent.retained == agent.retained_ram_plus
        assert agent.retained_mean == pytest.approx(expected.mean[name] / e, rel=1e-5)
        assert agent.whole_rescale == pytest.approx((e - s) / u, rel=1e-5)
    assert len(record.pairwise) == 3
    for pair in record.pairwise:
        key = (pair.first, pair.second)
        first, second = record.agent(pair.first), record.agent(pair.second)
        assert pair.both == expected.both[key]
        assert pair.jaccard == pair.both / (first.active + second.active - pair.both)
        assert pair.cosine == pytest.approx(expected.cosine[key], rel=1e-9)
        assert pair.sign_conflicts == pytest.approx(expected.conflicts[key], rel=1e-9)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_the_realised_rescale_is_that_of_the_merged_weights(trio: Trio, tmp_path, out_dtype):
    config = trio.config("ram_plus", out_dtype=out_dtype, parameters={"r": 0.5})
    record = inspected(config, tmp_path)
    plus, plain = (
        merge_yaml(config | {"parameters": {"r": r}}, tmp_path / f"r{r}") for r in (0.5, 0.0)
    )
    for agent in record.agents:
        step = square = changed = unique = 0.0
        for key, base in trio.base.items():
            deltas = {n: w[key].double() - base.double() for n, w in trio.agents.items()}
            overlap = sum((delta.abs() > 1e-5).int() for delta in deltas.values())
            mask = (deltas[agent.model].abs() > 1e-5) & (overlap == 1)
            delta = deltas[agent.model][mask]
            step += float(((plus[key].double() - base.double())[mask] * delta).sum())
            square += float((delta**2).sum())
            changed += int((plus[key] != plain[key])[mask].sum())
            unique += int(mask.sum())
        assert agent.realised_rescale == pytest.approx(step / square, rel=1e-9)
        assert agent.rescale_effect == changed / unique
        assert agent.realised_rescale > 1
    assert record.out_dtype == out_dtype


def test_scale_weight_and_power_enter_what_is_kept(trio: Trio, tmp_path):
    names = list(trio.agents)
    config = trio.config("ram_plus", parameters={"scale": 0.5, "overlap_power": 0.0})
    config["models"][0]["parameters"] = {"weight": 2.0}
    config["out_dtype"] = "float32"
    record = inspected(config, tmp_path)
    merged = merge_yaml(config, tmp_path / "merged")
    for name in names:
        carried = energy = 0.0
        for key, base in trio.base.items():
            delta = (trio.agents[name][key].double() - base.double()).flatten()
            delta[delta.abs() <= 1e-5] = 0
            carried += float((merged[key].double() - base.double()).flatten() @ delta)
            energy += float(delta @ delta)
        assert record.agent(name).retained == pytest.approx(carried / energy, rel=1e-4)


def test_parameters_that_differ_by_tensor_are_told(trio: Trio, tmp_path):
    config = trio.config(
        "ram_plus", parameters={"r": [{"filter": "mlp", "value": 0.2}, {"value": 0.1}]}
    )
    record = inspected(config, tmp_path)
    assert record.settings.r == (0.1, 0.2)
    ratio = record.agents[0].overlap_unique_ratio
    expected = [1 + r * min(ratio, 2.0) for r in (0.1, 0.2)]
    assert list(record.agents[0].rescale) == pytest.approx(expected)
    by_tensor = {tensor.name: tensor.agents[0].rescale for tensor in record.tensors}
    assert all((value > expected[0]) == ("mlp" in name) for name, value in by_tensor.items())


@pytest.mark.parametrize("method", ["ties", "linear", "dare_ties"])
def test_a_configuration_of_another_method_will_do(trio: Trio, tmp_path, method):
    parameters = {"density": 0.5, "weight": 0.3, "epsilon": 0.2}
    config = trio.config(method, parameters=parameters)
    record = inspected(config, tmp_path)
    assert record.merge_method == method
    assert record.epsilon == 1e-5
    assert [list(agent.overlap_degree) for agent in record.agents] == list(
        count(trio.base, trio.agents).overlap_degree.values()
    )
    assert all(agent.weight == 1 for agent in record.agents)
