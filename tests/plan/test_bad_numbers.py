"""Numbers beyond what a merge reckons in, through ``mergekit-yaml``: refused, nothing written."""

from __future__ import annotations

import pytest
from models import Trio, make_agent, run_yaml

LARGEST = "beyond float32, whose largest number is 3.40282e+38"


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        ("ram", "epsilon", 1e39, f"parameter 'epsilon' is 1e+39, {LARGEST} (tensor "),
        ("ram_plus", "scale", 1e39, f"parameter 'scale' is 1e+39, {LARGEST} (tensor "),
        ("ram", "weight", 1e39, f"/coder is 1e+39, {LARGEST} (tensor "),
        (
            "ram_plus",
            "epsilon",
            float("nan"),
            "parameter 'epsilon' must be a finite number ≥ 0; got nan",
        ),
        ("ram", "weight", float("inf"), "parameter 'weight' must be a finite number; got inf"),
    ],
)
def test_a_number_that_float32_cannot_hold_is_refused(trio: Trio, method, name, value, message):
    result = run_yaml(trio.config(method, parameters={name: value}), trio.folder / "out")
    assert result.exit_code == 1
    assert message in result.output
    assert not list((trio.folder / "out").glob("*.safetensors"))


@pytest.mark.parametrize("value", [1e100, float("nan")])
def test_a_rescale_that_nothing_can_be_scaled_by_is_refused(trio: Trio, value):
    config = trio.config("ram_plus", parameters={"rescale": value})
    result = run_yaml(config, trio.folder / "out")
    assert result.exit_code == 1
    assert "parameter 'rescale'" in result.output
    assert ("is 1e+100, beyond float32" if value > 1 else "got nan") in result.output


def test_a_clip_beyond_float32_is_refused_where_no_parameter_is_unique(trio: Trio):
    twins = [trio.folder / name for name in ("coder", "twin")]
    make_agent(twins[1], trio.folder / "base", 0.05, seed=1)
    config = trio.config("ram_plus", parameters={"alpha": 1e100})
    config["models"] = [{"model": str(twin)} for twin in twins]
    result = run_yaml(config, trio.folder / "out")
    assert result.exit_code == 1
    assert f"parameter 'rescale' of model {twins[0]} is 1e+99, {LARGEST} (tensor " in result.output
    assert "Set a smaller one; λ is 1 + r · clip(ρ, 0, alpha)" in result.output
    assert not list((trio.folder / "out").glob("*.safetensors"))
