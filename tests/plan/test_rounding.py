"""Rounding is not an update: bases that are stored wider than their agents."""

from __future__ import annotations

import json

import pytest
import reference
import torch
from families import Family, warnings_of
from models import Weights


class Rounded(Family):
    """A float32 base, and agents that trained from its rounding to bfloat16."""

    def __init__(self, folder, architecture="Qwen2", agents_dtype=torch.bfloat16):
        super().__init__(folder, architecture)
        generator = torch.Generator().manual_seed(7)
        self.rounded = dict(self.base)
        for name, tensor in self.base.items():
            noise = torch.rand(tensor.shape, generator=generator) - 0.5
            self.base[name] = tensor.float() * (1 + noise * 2**-9)
            self.rounded[name] = self.base[name].bfloat16()
        self.write("base", self.base)
        self.configure("base", dtype="float32")
        for name, own in self.agents.items():
            start = {n: t.float() for n, t in self.rounded.items()}
            for key, tensor in own.items():
                changed = torch.rand(tensor.shape, generator=generator) < 0.05
                start[key] = torch.where(changed, start[key] + 0.125, start[key]).bfloat16()
            self.agents[name] = {n: t.to(agents_dtype) for n, t in start.items()}
            self.write(name, self.agents[name])

    def explained(self, name: str) -> float:
        """Share of an agent's active parameters that are the rounded base's."""
        active = explained = 0
        for key, tensor in self.agents[name].items():
            changed = (tensor.float() - self.base[key]).abs() > 1e-5
            active += int(changed.sum())
            explained += int((changed & (tensor == self.rounded[key])).sum())
        return explained / active


def rescales(base: Weights, agents: dict[str, Weights]) -> list[float]:
    counts = reference.count(base, agents)
    return [counts.rescale(name, 0.1, 2.0) for name in agents]


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo"])
def test_a_base_stored_wider_is_warned_of_with_the_line_that_mends_it(
    tmp_path, caplog, architecture
):
    family = Rounded(tmp_path, architecture)
    with warnings_of(caplog) as warnings:
        family.merge()
    (warning,) = [w for w in warnings if "stored in" in w]
    assert warning == (
        f"the base {family.path('base')} is stored in torch.float32 and {family.path('coder')}, "
        f"{family.path('tool')} in torch.bfloat16: where an agent changed nothing, it can differ "
        "from the base by its rounding, and then counts as active. `dtype: bfloat16` rounds the "
        "base as the agents were rounded"
    )
    assert family.findings()["base-stored-wider"] == warning + "."


def test_rounding_the_base_is_not_warned_against(tmp_path, caplog):
    family = Rounded(tmp_path)
    with warnings_of(caplog) as warnings:
        family.merge(dtype="bfloat16")
    assert not [w for w in warnings if "rounded" in w or "stored in" in w]
    found = [agent["rescale"] for agent in family.record()["agents"]]
    assert found == pytest.approx(rescales(family.rounded, family.agents))
    assert max(agent["density"] for agent in family.record()["agents"]) < 0.06
    assert not {"base-stored-wider", "rounding-explained"} & set(family.findings(dtype="bfloat16"))


def test_an_agent_that_dtype_rounds_is_warned_of_still(tmp_path, caplog):
    family = Rounded(tmp_path)
    wide = {name: t.float() for name, t in family.agents["tool"].items()}
    family.write("tool", {name: t + 1e-4 for name, t in wide.items()})
    with warnings_of(caplog) as warnings:
        family.merge(dtype="bfloat16")
    (warning,) = [w for w in warnings if "rounded" in w]
    assert warning.startswith(f"model {family.path('tool')}: stored in torch.float32 and rounded")


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32, torch.float16])
def test_what_rounding_explains_is_a_finding(tmp_path, stored):
    family = Rounded(tmp_path, agents_dtype=stored)
    result = family.inspect()
    assert result.exit_code == 0, result.output
    texts = [
        finding["text"]
        for finding in json.loads(result.stdout)["findings"]
        if finding["code"] == "rounding-explained"
    ]
    for name in family.agents:
        share = 100 * family.explained(name)
        assert share > 50
        assert (
            f"Of what {family.path(name)} changed, {share:.3g} % is the base rounded to bfloat16 "
            "and nothing else: all its values are such as bfloat16 holds, and the base is stored "
            "wider. `dtype: bfloat16` rounds the base as well."
        ) in texts


def test_of_a_base_that_was_only_converted_nothing_is_explained_by_rounding(tmp_path):
    family = Family(tmp_path)
    family.write("base", {name: t.float() for name, t in family.base.items()})
    family.merge()
    assert "rounding-explained" not in set(family.findings())


def test_agents_stored_wider_than_their_base_are_nothing_special(tmp_path, caplog):
    family = Family(tmp_path)
    for name, own in family.agents.items():
        family.write(name, {key: t.float() + 1e-7 for key, t in own.items()})
    with warnings_of(caplog) as warnings:
        family.merge()
    assert not warnings
    assert "rounding-explained" not in family.findings()
