"""The merges that the benchmark on agents compares with."""

from __future__ import annotations

import torch

from benchmarks.agents.merges.fusion import wudi
from benchmarks.agents.merges.wudi import wudi_by_grams


def test_wudi_by_grams_takes_the_steps_of_fusion_bench():
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    base = {"weight": drawn(24, 16), "norm": drawn(7)}
    agents = {
        name: {key: value + 1e-3 * drawn(*value.shape) for key, value in base.items()}
        for name in "abc"
    }
    theirs, ours = (merge(base, agents, 200) for merge in (wudi, wudi_by_grams))
    moved = theirs["weight"] - sum(agents[name]["weight"] - base["weight"] for name in agents)
    assert (moved - base["weight"]).abs().max() > 1e-3
    for name in base:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=2e-6)
