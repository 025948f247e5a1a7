"""``mergekit-ram inspect`` against a naive reference and against real merges."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from models import Trio, forget_loaded_models, make_base, merge_yaml, read_weights, write_weights
from reference import count, energies

from mergekit_ram.cli import main
from mergekit_ram.record.schema import OverlapRecord

PAPER = {
    "coding": (6.3, 49.1, 44.6),
    "tool": (40.8, 56.1, 3.1),
    "memory": (47.5, 49.9, 2.6),
}
PAPER_RESCALE = {"coding": 1.200, "tool": 1.145, "memory": 1.111}


def run(config: dict[str, Any] | Path, folder: Path, *options: str) -> Result:
    source = config
    if isinstance(config, dict):
        source = folder / "inspect.yml"
        source.write_text(yaml.safe_dump(config))
    forget_loaded_models()
    return CliRunner().invoke(main, ["inspect", str(source), *options])


def inspected(config: dict[str, Any], folder: Path, *options: str) -> OverlapRecord:
    result = run(config, folder, "--quiet", "--json", "-", *options)
    assert result.exit_code == 0, result.output
    return OverlapRecord.model_validate_json(result.stdout)


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


def paper_agents(folder: Path) -> dict[str, Any]:
    """Three agents whose overlaps are the paper's, in a random arrangement."""
    base = make_base(folder / "base", dtype=torch.float32, vocab_size=1024)
    total = sum(tensor.numel() for tensor in base.values())
    active = {"coding": 0.032 * total}
    triple = active["coding"] * PAPER["coding"][2] / 100
    for name in ("tool", "memory"):
        active[name] = triple / (PAPER[name][2] / 100)
    pairs = {name: active[name] * PAPER[name][1] / 100 for name in PAPER}
    half = sum(pairs.values()) / 2
    regions = {
        ("coding", "tool", "memory"): triple,
        ("coding", "tool"): half - pairs["memory"],
        ("coding", "memory"): half - pairs["tool"],
        ("tool", "memory"): half - pairs["coding"],
        **{(name,): active[name] * PAPER[name][0] / 100 for name in PAPER},
    }
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    changed = {name: torch.zeros(total, dtype=torch.bool) for name in PAPER}
    start = 0
    for names, size in regions.items():
        stop = start + max(0, round(size))
        for name in names:
            changed[name][order[start:stop]] = True
        start = stop
    for name, mask in changed.items():
        weights, place = {}, 0
        for key, tensor in base.items():
            own = mask[place : place + tensor.numel()].view(tensor.shape)
            weights[key] = torch.where(own, tensor + 1e-3, tensor)
            place += tensor.numel()
        write_weights(folder / name, weights, folder / "base")
    return {
        "merge_method": "ram_plus",
        "base_model": str(folder / "base"),
        "models": [{"model": str(folder / name)} for name in PAPER],
    }


def test_the_papers_overlaps_are_printed_with_the_papers_factors(tmp_path):
    config = paper_agents(tmp_path)
    text = run(config, tmp_path, "--quiet").output
    lines = {
        (Path(row[0]).name, number): row
        for number, row in enumerate(line.split() for line in text.splitlines())
        if row and Path(row[0]).name in PAPER
    }
    for name, percentages in PAPER.items():
        rows = [row for (found, _), row in sorted(lines.items()) if found == name]
        assert rows[0][6] == f"{PAPER_RESCALE[name]:.3f}"
        printed = [float(cell) for cell in rows[1][1:] if cell != "%"]
        assert printed == pytest.approx(percentages, abs=0.1)


def test_further_thresholds_are_counted_in_the_same_pass(trio: Trio, tmp_path, monkeypatch):
    from mergekit_ram.inspection import inspect as inspection

    loads = []
    load = inspection.load_group
    monkeypatch.setattr(
        inspection, "load_group", lambda *a: (loads.append(a[0].output_weight.name), load(*a))[1]
    )
    record = inspected(
        trio.config("ram"), tmp_path, "--no-realised", "--epsilon", "1e-6", "1e-2", "1e-4"
    )
    assert sorted(loads) == sorted(trio.base)
    assert [threshold.epsilon for threshold in record.thresholds] == [1e-6, 1e-4, 1e-2]
    for threshold in record.thresholds:
        expected = count(trio.base, trio.agents, threshold.epsilon)
        for agent in threshold.agents:
            assert agent.active == sum(expected.overlap_degree[agent.model])
            assert agent.unique == expected.overlap_degree[agent.model][0]
            assert agent.rescale == expected.rescale(agent.model, 0.1, 2.0)


def test_a_sample_is_repeatable_and_its_intervals_hold_the_truth(tmp_path):
    trio = Trio(tmp_path, vocab_size=2048, intermediate_size=512)
    whole = inspected(trio.config("ram_plus"), tmp_path)
    text = run(trio.config("ram_plus"), tmp_path, "--quiet", "--sample", "0.2").output
    assert text == run(trio.config("ram_plus"), tmp_path, "--quiet", "--sample", "0.2").output
    held = []
    for seed in range(8):
        options = ("--sample", "0.2", "--seed", str(seed), "--epsilon", "1e-3")
        record = inspected(trio.config("ram_plus"), tmp_path, *options)
        assert 0.19 < record.sample.parameters / record.parameters < 0.25
        for agent in record.agents:
            truth = whole.agent(agent.model)
            for field, (low, high) in agent.interval.items():
                name, _, place = field.partition(".")
                true = getattr(truth, name)
                held.append(low <= (true[int(place)] if place else true) <= high)
        for pair, truth in zip(record.pairwise, whole.pairwise, strict=True):
            assert {"both", "jaccard", "cosine", "sign_conflicts"} == pair.interval.keys()
            held += [low <= getattr(truth, n) <= high for n, (low, high) in pair.interval.items()]
        assert all(a.interval for threshold in record.thresholds for a in threshold.agents)
        assert all(layer.interval for layer in record.layers)
    # 95 % intervals; the figures of one seed hang together.
    assert len(held) > 400
    assert 0.88 < sum(held) / len(held) < 0.995


def test_every_figure_of_a_sample_is_called_an_estimate(trio: Trio, tmp_path):
    lines = run(trio.config("ram"), tmp_path, "--quiet", "--sample", "0.5").output.splitlines()
    assert "estimate from 0.5 of the rows" in lines[1]
    headings = [above for above, below in zip(lines[2:], lines[4:], strict=False) if "---" in below]
    assert len(headings) == 7
    assert all(heading.endswith("(estimate)") for heading in headings)


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


def test_nothing_is_written(trio: Trio, tmp_path):
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    run(trio.config("ram_plus"), tmp_path)
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after.keys() - before.keys() == {tmp_path / "inspect.yml"}
    assert all(after[file] == content for file, content in before.items())


def test_results_go_to_the_standard_output_and_the_rest_does_not(trio: Trio, tmp_path):
    result = run(trio.config("ram_plus"), tmp_path, "--json", "-")
    assert json.loads(result.stdout)["parameters"] == sum(t.numel() for t in trio.base.values())
    assert "Counting overlaps" in result.stderr
    assert "MB/s" in result.stderr
    result = run(trio.config("ram_plus"), tmp_path, "--quiet", "--json", str(tmp_path / "o.json"))
    assert result.stdout.startswith("ram_plus over")
    assert result.stderr == f"wrote {tmp_path / 'o.json'}\n"
    assert OverlapRecord.model_validate_json((tmp_path / "o.json").read_text()).kind == "inspection"


def codes(record: OverlapRecord) -> set[str]:
    return {finding.code for finding in record.findings}


def test_usual_agents_give_no_findings_and_strict_is_content(trio: Trio, tmp_path):
    config = trio.config("ram_plus", out_dtype="float32", parameters={"alpha": 50})
    assert codes(inspected(config, tmp_path, "--strict")) == set()


def test_findings_are_said_where_they_are_true(trio: Trio, tmp_path):
    coder, tool, memory = (Path(path) for path in trio.agents)
    base = Path(trio.base_path)
    everything = {name: tensor + 1 for name, tensor in trio.base.items()}
    write_weights(coder, trio.base, base)
    write_weights(tool, everything, base)
    write_weights(memory, {n: t + 2 for n, t in trio.base.items()}, base)
    result = run(trio.config("ram_plus"), tmp_path, "--quiet", "--strict")
    assert result.exit_code == 3
    assert f"{coder} equals the base within ε everywhere and contributes nothing" in result.output
    assert f"{tool} changed 100.0 % of all parameters: this is no sparse update" in result.output
    assert f"Of what {tool} changed, 0 % is unique: RAM dilutes it as averaging" in result.output
    assert "Every agent's ρ is above α, so that all get the same λ" in result.output
    assert "changed by no agent" not in result.output


def test_untouched_tensors_and_a_lost_rescale_are_found(trio: Trio, tmp_path):
    base = Path(trio.base_path)
    last_places = {}
    for number, path in enumerate(map(Path, trio.agents)):
        weights = {}
        for name, tensor in trio.base.items():
            bits = tensor.view(torch.int16).clone()
            if "mlp" in name:
                # One unit in the last place of every third parameter: λ rounds away.
                bits.view(-1)[number::3] += 1
            weights[name] = bits.view(torch.bfloat16)
        last_places[path] = weights
        write_weights(path, weights, base)
    record = inspected(trio.config("ram_plus", parameters={"r": 0.1, "epsilon": 0}), tmp_path)
    assert codes(record) == {"untouched-tensors"}  # nothing is shared, λ is 1
    first = next(iter(last_places))
    for name, tensor in last_places[first].items():
        if "mlp" in name:
            tensor.view(torch.int16).view(-1)[1::3] += 1
    write_weights(first, last_places[first], base)
    record = inspected(trio.config("ram_plus", parameters={"r": 0.1, "epsilon": 0}), tmp_path)
    texts = {finding.code: finding.text for finding in record.findings}
    assert set(texts) == {"untouched-tensors", "few-unique", "rescale-lost"}
    assert "0 % survives in bfloat16" in texts["rescale-lost"]
    assert "`out_dtype: float32` keeps it" in texts["rescale-lost"]
    config = trio.config("ram_plus", out_dtype="float32", parameters={"epsilon": 0})
    assert "rescale-lost" not in codes(inspected(config, tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("merge_method: [", "cannot be read as a configuration of mergekit"),
        ("merge_method: ties\nmodels: [{model: ./a}]", "names no `base_model:`"),
    ],
)
def test_configurations_that_cannot_be_inspected_are_refused(tmp_path, text, message):
    source = tmp_path / "merge.yml"
    source.write_text(text)
    result = run(source, tmp_path)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output


def test_broken_models_are_refused_in_one_line(trio: Trio, tmp_path):
    coder = next(iter(trio.agents))
    weights = read_weights(Path(coder))
    weights["model.norm.weight"][3] = float("nan")
    write_weights(Path(coder), weights, Path(trio.base_path))
    result = run(trio.config("ram"), tmp_path, "--quiet")
    assert (result.exit_code, result.output) == (
        1,
        f"Error: model {coder}, tensor model.norm.weight: holds nan; a merge with it would be "
        "wrong. Repair or re-download this checkpoint.\n",
    )


def test_options_out_of_range_are_refused(trio: Trio, tmp_path):
    for option in (("--sample", "1"), ("--epsilon", "-1"), ("--epsilon",)):
        assert run(trio.config("ram"), tmp_path, *option).exit_code == 2


def test_the_plugin_switched_off_is_an_error(trio: Trio, tmp_path, monkeypatch):
    monkeypatch.setenv("MERGEKIT_RAM_DISABLE", "1")
    result = run(trio.config("ram"), tmp_path)
    assert result.exit_code == 1
    assert "switched off by MERGEKIT_RAM_DISABLE" in result.output


def test_the_help_teaches():
    text = CliRunner().invoke(main, ["inspect", "--help"]).output
    for word in ("--epsilon E [E ...]", "--sample", "--device", "Exit codes", "mergekit-yaml"):
        assert word in text
    assert "--out-shard-size" not in text


def test_results_without_a_place_are_refused_before_anything_is_read(
    trio: Trio, tmp_path, monkeypatch
):
    from mergekit_ram.inspection import inspect as inspection

    monkeypatch.setattr(inspection, "inspect", None)
    for option in ("--json", "--html"):
        missing = tmp_path / "missing" / "out"
        result = run(trio.config("ram"), tmp_path, option, str(missing))
        assert result.exit_code == 1
        assert result.output.startswith(f"Error: {missing} cannot be written")
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    for name in [name for name in sys.modules if name.startswith("mergekit_ram.show.page.figures")]:
        monkeypatch.delitem(sys.modules, name)
    result = run(trio.config("ram"), tmp_path, "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 1
    assert "pip install 'mergekit-ram[html]'" in result.output
