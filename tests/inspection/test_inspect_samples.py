"""``--epsilon`` and ``--sample`` of ``mergekit-ram inspect``."""

from __future__ import annotations

from inspecting import inspected, run_inspect
from models import Trio
from reference import count


def test_further_thresholds_are_counted_in_the_same_pass(trio: Trio, tmp_path, monkeypatch):
    from mergekit_ram.inspection import walk

    loads = []
    load = walk.load_group
    monkeypatch.setattr(
        walk, "load_group", lambda *a: (loads.append(a[0].output_weight.name), load(*a))[1]
    )
    record = inspected(
        trio.config("ram"), tmp_path, "--no-realised", "--epsilon", "1e-6", "1e-2", "1e-4"
    )
    assert sorted(loads) == sorted(trio.base)
    # The merge's own is there to compare with.
    assert [threshold.epsilon for threshold in record.thresholds] == [1e-6, 1e-5, 1e-4, 1e-2]
    for threshold in record.thresholds:
        expected = count(trio.base, trio.agents, threshold.epsilon)
        for agent in threshold.agents:
            assert agent.active == sum(expected.overlap_degree[agent.model])
            assert agent.unique == expected.overlap_degree[agent.model][0]
            assert agent.rescale == expected.rescale(agent.model, 0.1, 2.0)


def test_a_sample_is_repeatable_and_its_intervals_hold_the_truth(tmp_path):
    trio = Trio(tmp_path, vocab_size=2048, intermediate_size=512)
    whole = inspected(trio.config("ram_plus"), tmp_path)
    text = run_inspect(trio.config("ram_plus"), tmp_path, "--quiet", "--sample", "0.2").output
    assert (
        text == run_inspect(trio.config("ram_plus"), tmp_path, "--quiet", "--sample", "0.2").output
    )
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
    lines = run_inspect(
        trio.config("ram"), tmp_path, "--quiet", "--sample", "0.5"
    ).output.splitlines()
    assert "estimate from 0.5 of the rows" in lines[1]
    headings = [above for above, below in zip(lines[2:], lines[4:], strict=False) if "---" in below]
    assert len(headings) == 6
    assert all(heading.endswith("(estimate)") for heading in headings)
