"""Outputs of the authors' script: the truth, within float32 rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from mergekit.merge_methods import merge_state_dicts
from safetensors.torch import load_file

from mergekit_ram import count

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "expected.json").read_text())
TOLERANCE = {"atol": 1e-7, "rtol": 0.0}

Models = dict[str, dict[str, torch.Tensor]]


def read(name: str) -> Models:
    """The vector file's tensors by owner (base, agent<k>, ram, ram_plus)."""
    models: Models = {}
    for key, tensor in load_file(DATA / f"{name}.safetensors").items():
        owner, tensor_name = key.split(".", 1)
        models.setdefault(owner, {})[tensor_name] = tensor
    return models


def split(models: Models, agents: int) -> Models:
    """Base and agents, in order."""
    names = sorted(name for name in models if name.startswith("agent"))
    assert len(names) == agents
    return {name: models[name] for name in ["base", *names]}


@pytest.mark.parametrize("name", EXPECTED)
def test_counts_are_exact(name):
    expected = EXPECTED[name]
    base, *agents = split(read(name), expected["agents"]).values()
    total = torch.zeros(len(agents), len(agents), dtype=torch.int64)
    for tensor_name, tensor in base.items():
        counts = count(
            tensor, [agent[tensor_name] for agent in agents], epsilon=expected["epsilon"]
        )
        total += torch.tensor(counts.overlap_degree)
    assert total.tolist() == expected["overlap_degree"]
    assert total.sum(dim=1).tolist() == expected["active"]
    assert total[:, 0].tolist() == expected["unique"]
    assert total[:, 1:].sum(dim=1).tolist() == expected["shared"]
    assert sum(tensor.numel() for tensor in base.values()) == expected["parameters"]


@pytest.mark.parametrize("name", EXPECTED)
def test_ram_and_ram_plus_are_the_authors(name):
    expected = EXPECTED[name]
    models = read(name)
    inputs = split(models, expected["agents"])
    settings = {"epsilon": expected["epsilon"]}
    ram = merge_state_dicts(inputs, "ram", base="base", parameters=settings)
    settings |= {key: expected["ram_plus"][key] for key in ("r", "alpha")}
    ram_plus = merge_state_dicts(inputs, "ram_plus", base="base", parameters=settings)
    for tensor_name in models["base"]:
        torch.testing.assert_close(ram[tensor_name], models["ram"][tensor_name], **TOLERANCE)
        torch.testing.assert_close(
            ram_plus[tensor_name], models["ram_plus"][tensor_name], **TOLERANCE
        )


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("setting", ["ram_plus", "paper_defaults"])
def test_rescale_factors_are_the_expected_ones(name, setting):
    from mergekit_ram.overlap import AgentOverlap

    expected = EXPECTED[name]
    choice = expected[setting]
    for degree, ratio, rescale in zip(
        expected["overlap_degree"], expected["rho"], choice["rescale"], strict=True
    ):
        agent = AgentOverlap(
            model="a", overlap_degree=tuple(degree), parameters=expected["parameters"]
        )
        assert agent.overlap_unique_ratio == pytest.approx(ratio, rel=1e-12)
        assert agent.rescale(choice["r"], choice["alpha"]) == pytest.approx(rescale, rel=1e-12)
