"""mergekit-pytorch: what is written equals the naive reference, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import yaml
from click.testing import CliRunner
from models import (
    Trio,
    Weights,
    merge_yaml,
    succeed,
)
from roads import BOTH, assert_same
from safetensors.torch import load_file, save_file

# Raw checkpoints


def merge_raw(folder: Path, method: str, *options: str, **changes: Any) -> Weights:
    from mergekit.scripts.merge_raw_pytorch import SimpleLoaderCache, main

    SimpleLoaderCache().loaders.clear()
    paths = sorted(str(path) for path in folder.glob("agent*.*"))
    (base,) = (str(path) for path in folder.glob("base.*"))
    config = {"merge_method": method, "base_model": base, "models": [{"model": p} for p in paths]}
    (folder / "raw.yml").write_text(yaml.safe_dump(config | changes))
    out = folder / "out"
    succeed(CliRunner().invoke(main, [str(folder / "raw.yml"), str(out), *options]))
    return load_file(out / "model.safetensors")


def policies(suffix: str, folder: Path) -> tuple[Weights, dict[str, Weights]]:
    """Policies of a classic RL library: a few layers and a step counter."""
    generator = torch.Generator().manual_seed(0)
    base = {
        "mlp.0.weight": torch.randn(16, 8, generator=generator),
        "mlp.0.bias": torch.randn(16, generator=generator),
        "actor.weight": torch.randn(4, 16, generator=generator),
    }
    found = {}
    for number, share in enumerate((0.2, 0.5)):
        found[str(folder / f"agent{number}{suffix}")] = {
            name: tensor
            + torch.randn(tensor.shape, generator=generator)
            * (torch.rand(tensor.shape, generator=generator) < share)
            for name, tensor in base.items()
        }
    counter = {"steps": torch.tensor([7])}
    for path, weights in {str(folder / f"base{suffix}"): base, **found}.items():
        if suffix == ".safetensors":
            save_file(weights | counter, path)
        else:
            torch.save(weights | counter, path)
    return base, found


@BOTH
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_raw_policies_have_one_ratio_too(tmp_path, method, r, suffix):
    base, agents = policies(suffix, tmp_path)
    written = merge_raw(tmp_path, method)
    assert torch.equal(written.pop("steps"), torch.tensor([7]))
    assert_same(written, reference.merge(base, agents, r=r), torch.float32)


@BOTH
@pytest.mark.parametrize("option", ["--tensor-union", "--tensor-intersection"])
def test_raw_tensors_that_some_models_lack(tmp_path, method, r, option):
    base, agents = policies(".safetensors", tmp_path)
    first, second = agents
    # One agent lacks its head, and one tensor is the base's alone.
    del agents[first]["actor.weight"]
    save_file(agents[first], first)
    save_file(agents[second], second)
    base["log_std"] = torch.ones(4)
    save_file(base, tmp_path / "base.safetensors")
    written = merge_raw(tmp_path, method, option)
    if option == "--tensor-intersection":
        for weights in (base, agents[second]):
            weights.pop("actor.weight")
    base.pop("log_std")
    # mergekit lists the tensors of the agents; what only the base has is not among them.
    assert_same(written, reference.merge(base, agents, r=r), torch.float32)


def test_raw_buffers_that_differ_are_refused(tmp_path):
    _, agents = policies(".safetensors", tmp_path)
    path, weights = next(iter(agents.items()))
    save_file(weights | {"steps": torch.tensor([8])}, path)
    with pytest.raises(AssertionError, match=r"tensor steps: torch\.int64 values are not merged"):
        merge_raw(tmp_path, "ram_plus")
    assert not (tmp_path / "out").exists()


# Models that stand in several roles


def test_a_base_of_its_own_per_slice(trio: Trio):
    coder, tool, memory = trio.agents
    everyone = [trio.base_path, coder, tool, memory]
    slices = [
        {
            "sources": [
                {"model": model, "layer_range": [number, number + 1]} for model in everyone
            ],
            "base_model": base,
        }
        for number, base in enumerate((trio.base_path, coder))
    ]
    config = {"merge_method": "ram_plus", "base_model": trio.base_path, "slices": slices}
    written = merge_yaml(config, trio.folder / "merged")
    weights = {trio.base_path: trio.base, **trio.agents}

    def role(name: str) -> str:
        late = "layers.1." in name or name == "model.norm.weight"
        return coder if late else trio.base_path

    base = {name: weights[role(name)][name] for name in trio.base}
    agents = {
        model: {name: weights[model][name] for name in trio.base if role(name) != model}
        for model in everyone
    }
    assert_same(written, reference.merge(base, agents, r=0.1))
