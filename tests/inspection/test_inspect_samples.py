"""``--epsilon`` and ``--sample`` of ``mergekit-ram inspect``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from inspecting import inspected, run_inspect
from mergekit.config import MergeConfiguration
from mergekit.merge_methods.base import TensorGroup
from models import Trio
from reference import count

from mergekit_ram import OverlapRecord, inspect
from mergekit_ram.inspection.disk import Disk
from mergekit_ram.inspection.sampling import GROUPS, Sample


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


def held(sample: OverlapRecord, whole: OverlapRecord) -> Iterator[tuple[str, bool]]:
    """For every interval of a sample, what it is of, and whether the truth lies in it."""
    kinds: dict[str, Any] = {
        "agents": (sample.agents, whole.agents),
        "pairs": (sample.pairwise, whole.pairwise),
        "layers": (sample.layers, whole.layers),
        "tensors": (sample.tensors, whole.tensors),
    }
    for kind, (estimates, truths) in kinds.items():
        for estimate, truth in zip(estimates, truths, strict=True):
            for field, (low, high) in estimate.interval.items():
                name, _, place = field.partition(".")
                true = getattr(truth, name)
                is_held = low <= (true[int(place)] if place else true) <= high
                yield name if name.startswith("re") and name != "retained" else kind, is_held


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_intervals_of_a_few_rows_per_tensor_hold_the_truth_too(tmp_path, dtype):
    trio = Trio(tmp_path, vocab_size=2048, intermediate_size=512, dtype=dtype)
    config = MergeConfiguration.model_validate(trio.config("ram_plus"))
    whole = inspect(config, directions=False)
    found: dict[str, list[bool]] = {}
    for seed in range(12):
        for kind, is_held in held(inspect(config, sample=Sample(0.02, seed)), whole):
            found.setdefault(kind, []).append(is_held)
    # What rounding leaves of λ has the error of λ as well.
    assert {"agents", "pairs", "layers", "tensors", "rescale", "realised_rescale"} <= found.keys()
    shares = {kind: sum(all_held) / len(all_held) for kind, all_held in found.items()}
    assert all(share > 0.85 for share in shares.values()), shares


def test_experts_that_are_stored_together_are_sampled_by_rows():
    together = torch.arange(8 * 30 * 5).reshape(8, 30, 5).float()
    group = TensorGroup.from_tensors([together, together + 1], base_index=0, name="experts")
    drawn = Sample(0.25).draw(group, Disk())
    assert drawn.numels == (15,) * GROUPS
    (base, agent) = drawn.group.tensors
    assert base.shape == (60, 5)
    assert torch.equal(agent, base + 1)
    # Rows of every expert, each whole.
    assert {int(row[0]) // 150 for row in base} == set(range(8))
    assert all(int(row[0]) % 5 == 0 and torch.equal(row, row[0] + torch.arange(5)) for row in base)


def test_small_tensors_begin_at_different_groups():
    chosen = [Sample(0.01).rows(f"layers.{number}.norm", 64) for number in range(40)]
    assert all(len(rows.numbers) == 2 and rows.sizes == (1, 1) for rows in chosen)
    assert {group for rows in chosen for group in rows.groups} == set(range(GROUPS))
