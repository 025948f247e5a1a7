"""Slices, filters and gradients: what is written equals the naive reference, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import reference
from models import (
    Trio,
    merge_yaml,
)
from roads import BOTH, assert_same, expected_with, layer, outside


@BOTH
def test_slices_with_a_repeated_layer_and_agents_of_different_ranges(trio: Trio, method, r):
    coder, tool, memory = trio.agents
    # Per layer of the output: the base's layer, and the agents of this slice with theirs.
    rows = [
        (0, {coder: 0, tool: 0, memory: 0}),
        (0, {coder: 0, tool: 1, memory: 1}),
    ]
    slices = [
        {
            "sources": [
                {"model": model, "layer_range": [source, source + 1]}
                for model, source in {trio.base_path: base_layer, **agents}.items()
            ]
        }
        for base_layer, agents in rows
    ]
    # The last slice lacks one agent, and so do the weights after the layers.
    slices[1]["sources"].pop()
    config = {"merge_method": method, "base_model": trio.base_path, "slices": slices}
    written = merge_yaml(config, trio.folder / "merged")
    base = outside(trio.base) | layer(trio.base, 0, 0) | layer(trio.base, 0, 1)
    agents = {
        model: outside(trio.agents[model]) | layer(trio.agents[model], 0, 0)
        for model in trio.agents
    }
    agents[coder] |= layer(trio.agents[coder], 0, 1)
    agents[tool] |= layer(trio.agents[tool], 1, 1)
    del agents[memory]["model.norm.weight"]
    assert_same(written, reference.merge(base, agents, r=r))


# Parameters: filters, gradients, and where they may stand


PER_TENSOR = {
    "epsilon": (5e-3, 1e-5),
    "r": (0.7, 0.1),
    "alpha": (0.2, 2.0),
    "scale": (0.5, 1.0),
    "overlap_power": (0.5, 1.0),
}


@pytest.mark.parametrize("level", ["top", "module", "slice"])
@pytest.mark.parametrize("parameter", PER_TENSOR)
def test_filters_at_every_level(trio: Trio, level, parameter):
    mlp, other = PER_TENSOR[parameter]
    parameters = {parameter: [{"filter": "mlp", "value": mlp}, {"value": other}]}
    models = trio.config("ram_plus")["models"]
    config: dict[str, Any] = {"merge_method": "ram_plus", "base_model": trio.base_path}
    if level == "top":
        config |= {"models": models, "parameters": parameters}
    elif level == "module":
        config["modules"] = {"default": {"models": models, "parameters": parameters}}
    else:
        sources = [{"model": model, "layer_range": [0, 2]} for model in trio.agents]
        sources.append({"model": trio.base_path, "layer_range": [0, 2]})
        config["slices"] = [{"sources": sources, "parameters": parameters}]
    written = merge_yaml(config, trio.folder / "merged")
    expected = expected_with(
        trio.base, trio.agents, lambda name, _: {parameter: mlp if "mlp" in name else other}
    )
    assert_same(written, expected)


@pytest.mark.parametrize(("parameter", "values"), [("weight", (0.0, 1.0)), ("rescale", (1.5, 0.5))])
def test_filters_of_one_agent(trio: Trio, parameter, values):
    config = trio.config("ram_plus")
    chosen = config["models"][1]["model"]
    config["models"][1]["parameters"] = {
        parameter: [{"filter": "mlp", "value": values[0]}, {"value": values[1]}]
    }
    written = merge_yaml(config, trio.folder / "merged")

    def choose(name: str, model: str) -> dict[str, Any]:
        return {parameter: values["mlp" not in name]} if model == chosen else {}

    assert_same(written, expected_with(trio.base, trio.agents, choose))


def test_gradients_run_over_the_layers(trio: Trio):
    written = trio.merge("ram_plus", parameters={"r": [0.0, 0.8], "scale": [0.5, 1.0]})

    def choose(name: str, _: str) -> dict[str, Any]:
        at_the_end = "layers.1." in name
        return {"r": 0.8, "scale": 1.0} if at_the_end else {"r": 0.0, "scale": 0.5}

    assert_same(written, expected_with(trio.base, trio.agents, choose))
