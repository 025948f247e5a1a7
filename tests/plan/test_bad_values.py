"""Values that cannot be merged end in one clear line."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from models import Trio, read_weights, run_yaml
from refusals import BOTH, agent, assert_not_loadable, change, refusal


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("ram", "base", float("nan")),
        ("ram", "tool", float("inf")),
        ("ram_plus", "base", float("-inf")),
        ("ram_plus", "tool", float("nan")),
    ],
)
def test_not_finite(trio: Trio, method, name, value):
    tensor = read_weights(trio.folder / name)["model.norm.weight"]
    tensor[5] = value
    change(trio, name, **{"model.norm.weight": tensor})
    result = run_yaml(trio.config(method), trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: model {trio.folder / name}, tensor model.norm.weight: holds {value}; a merge "
        "with it would be wrong. Repair or re-download this checkpoint."
    )
    assert_not_loadable(trio.folder / "out")


@BOTH
def test_overflow_of_the_output_dtype(trio: Trio, method):
    tensor = read_weights(agent(trio))["model.norm.weight"]
    tensor[5] = 1e5
    change(trio, "tool", **{"model.norm.weight": tensor})
    config = trio.config(method, out_dtype="float16")
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert re.fullmatch(
        r"Error: tensor model\.norm\.weight: a merged value of size \d+ does not fit "
        r"torch\.float16, whose largest is 65504\. Set a wider `out_dtype:`, or a smaller "
        r"`scale`\.",
        result.output.splitlines()[-1],
    )
    assert_not_loadable(trio.folder / "out")


def test_float8_weights(trio: Trio):
    name = "model.layers.0.mlp.up_proj.weight"
    tensor = read_weights(agent(trio))[name].to(torch.float8_e4m3fn)
    change(trio, "tool", **{name: tensor})
    assert refusal(trio, "ram") == (
        f"Error: model {agent(trio)}, tensor {name}: torch.float8_e4m3fn weights cannot be "
        "merged; dequantise the model to bfloat16, float16 or float32 first"
    )


def test_packed_integer_weights(trio: Trio):
    name = "model.layers.0.mlp.up_proj.weight"
    tensor = torch.zeros(read_weights(agent(trio))[name].shape, dtype=torch.uint8)
    change(trio, "tool", **{name: tensor})
    assert f"tensor {name}: torch.uint8 weights cannot be merged" in refusal(trio, "ram")


@pytest.mark.parametrize(("method", "where"), [("ram", "top"), ("ram_plus", "model")])
def test_parameters_out_of_range(trio: Trio, method, where):
    changes: dict[str, Any] = {"parameters": {"epsilon": "tiny"}}
    line = "Error: parameter 'epsilon' must be a finite number ≥ 0; got 'tiny'"
    if where == "model":
        models = trio.config(method)["models"]
        models[1]["parameters"] = {"weight": [{"filter": "mlp", "value": ".inf"}]}
        changes = {"models": models}
        line = "Error: parameter 'weight' must be a finite number; got '.inf'"
    assert refusal(trio, method, **changes) == line
