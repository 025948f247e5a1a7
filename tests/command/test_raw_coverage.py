"""mergekit-pytorch: what it leaves out of the output is named."""

from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import save_file
from test_raw_checkpoints import merge_raw, policies


@pytest.mark.parametrize("option", ["--tensor-union", "--tensor-intersection"])
def test_tensors_that_mergekit_leaves_out_are_named(tmp_path, caplog, option):
    base, agents = policies(".safetensors", tmp_path)
    first = next(iter(agents))
    save_file(base | {"log_std": torch.ones(4)}, tmp_path / "base.safetensors")
    save_file(agents[first], first)
    for path, weights in agents.items():
        save_file(weights, path)
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        written = merge_raw(tmp_path, "ram_plus", option)
    assert "log_std" not in written
    assert [r.getMessage() for r in caplog.records if r.name == "mergekit_ram"] == [
        f"model {tmp_path / 'base.safetensors'}: 1 tensors (4 parameters) are not in the output, "
        "since mergekit does not list them for this merge: log_std"
    ]


def test_an_agent_of_other_tensors_is_refused(tmp_path):
    _, agents = policies(".safetensors", tmp_path)
    path = next(iter(agents))
    save_file({f"net.{name}": t for name, t in agents[path].items()}, path)
    with pytest.raises(AssertionError, match="Error: the models have no tensor in common"):
        merge_raw(tmp_path, "ram_plus", "--tensor-intersection")
    assert not (tmp_path / "out").exists()
