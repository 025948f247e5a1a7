"""``--epsilon`` and ``--sample`` of ``mergekit-ram inspect``."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch
from inspecting import inspected, run_inspect
from mergekit.merge_methods.base import TensorGroup
from models import Trio, write_weights
from reference import count
from safetensors import safe_open
from safetensors.torch import save_file

from mergekit_ram.inspection import sample
from mergekit_ram.inspection.sample import GROUPS, Sample


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


def test_a_sample_is_repeatable_and_has_intervals(trio: Trio, tmp_path):
    options = ("--sample", "0.5", "--epsilon", "1e-3")
    record = inspected(trio.config("ram_plus"), tmp_path, *options)
    again = inspected(trio.config("ram_plus"), tmp_path, *options)
    assert record.model_copy(update={"seconds": 0}) == again.model_copy(update={"seconds": 0})
    assert 0.45 < record.sample.parameters / record.parameters < 0.6
    for agent in record.agents:
        assert {
            "density",
            "overlap_share.0",
            "rescale",
            "realised_rescale",
        } <= agent.interval.keys()
    for pair in record.pairwise:
        assert {"both", "jaccard", "cosine", "sign_conflicts"} == pair.interval.keys()
    assert all(a.interval for threshold in record.thresholds for a in threshold.agents)
    assert all(part.interval for part in (*record.layers, *record.tensors))


def test_tensors_that_are_read_whole_leave_nothing_unknown(trio: Trio, tmp_path):
    # No tensor of this model has 100 rows.
    record = inspected(trio.config("ram_plus"), tmp_path, "--sample", "0.99")
    assert record.sample.parameters == record.parameters
    for agent in record.agents:
        assert all(low == high for low, high in agent.interval.values())


def test_every_figure_of_a_sample_is_called_an_estimate(trio: Trio, tmp_path):
    options = ("--quiet", "--sample", "0.5")
    text = run_inspect(trio.config("ram"), tmp_path, *options).stdout
    assert "estimate from 0.5 of the rows" in text
    lines = text.splitlines()
    pairs = zip(lines[2:], lines[4:], strict=False)
    # A folded table has its heading once.
    headings = [above for above, below in pairs if above and "---" in below]
    assert len(headings) == 6
    assert all(heading.endswith("(estimate)") for heading in headings)


def test_experts_that_are_stored_together_are_sampled_by_rows():
    together = torch.arange(8 * 30 * 5).reshape(8, 30, 5).float()
    group = TensorGroup.from_tensors([together, together + 1], base_index=0, name="experts")
    rows = Sample(0.25).draw(group)
    assert (rows.count, rows.numels) == (60, (30,) * GROUPS)
    (base, agent) = rows.group.tensors
    assert base.shape == (60, 5)
    assert torch.equal(agent, base + 1)
    # Rows of every expert, each whole.
    assert {int(row[0]) // 150 for row in base} == set(range(8))
    assert all(int(row[0]) % 5 == 0 and torch.equal(row, row[0] + torch.arange(5)) for row in base)


def test_every_group_has_rows_of_every_tensor_or_the_tensor_is_whole():
    for size, numels in ((GROUPS, (GROUPS,)), (64, (1,) * GROUPS)):
        group = TensorGroup.from_tensors([torch.zeros(size)] * 2, base_index=0, name="norm")
        assert Sample(0.01).draw(group).numels == numels


def test_nothing_is_read_ahead_for_a_row_and_afterwards_it_is_again(tmp_path, monkeypatch):
    asked = []
    advise = sample._madvise()
    monkeypatch.setattr(sample, "_madvise", lambda: lambda *a: asked.append((*a, advise(*a))))
    save_file({"x": torch.zeros(5000, 100)}, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        tensor = file.get_tensor("x")
        group = TensorGroup.from_tensors([tensor], base_index=0, name="x")
        Sample(0.01).draw(group)
    (start, size, how, failed), (*again, normal, failed_again) = asked
    assert start % mmap.PAGESIZE == 0
    assert start <= tensor.data_ptr()
    assert start + size == tensor.data_ptr() + tensor.nbytes
    assert (how, normal) == (mmap.MADV_RANDOM, mmap.MADV_NORMAL)
    assert again == [start, size]
    assert failed == failed_again == 0


def test_without_madvise_the_figures_are_the_same(trio: Trio, tmp_path, monkeypatch):
    options = ("--sample", "0.5", "--no-realised")
    expected = inspected(trio.config("ram_plus"), tmp_path, *options)
    monkeypatch.setattr(sample, "_madvise", lambda: None)
    assert inspected(trio.config("ram_plus"), tmp_path, *options).agents == expected.agents


def test_what_a_sample_does_not_bound_is_said_to_be_unknown(trio: Trio, tmp_path):
    folder = Path(next(iter(trio.agents)))
    name = "model.embed_tokens.weight"
    changed = trio.base[name].clone()
    changed[3] += 1.0  # one row of all is active
    write_weights(folder, {**trio.base, name: changed}, Path(trio.base_path))
    whole = inspected(trio.config("ram_plus"), tmp_path).agents[0]
    record = inspected(trio.config("ram_plus"), tmp_path, "--sample", "0.2")
    agent = record.agents[0]
    low, high = agent.interval["density"]
    assert low <= whole.density <= high
    low, high = agent.interval["rescale"]
    assert low <= whole.rescale <= high
    assert [agent.interval.get(field) for field in ("energy", "retained")] == [None, None]
    shown = run_inspect(trio.config("ram_plus"), tmp_path, "--quiet", "--sample", "0.2").output
    assert (agent.active > 0) == ("[too few seen]" in shown)
