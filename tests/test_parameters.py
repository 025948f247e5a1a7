"""Every parameter's range, and the words that refuse a value out of it."""

from __future__ import annotations

import pytest
import torch
from mergekit.merge_methods import merge_tensors
from models import Trio, run_yaml

from mergekit_ram.errors import ParameterError

RANGES = {
    "epsilon": "a finite number ≥ 0",
    "scale": "a finite number ≥ 0",
    "weight": "a finite number",
    "overlap_power": "a finite number from 0 to 1",
    "r": "a finite number ≥ 0",
    "alpha": "a finite number ≥ 0",
    "rescale": "a finite number ≥ 0, or left out to be computed",
}
REFUSED = [
    *((name, value) for name in RANGES for value in ("much", float("nan"), float("inf"), True)),
    *((name, -0.5) for name in RANGES if name != "weight"),
    ("overlap_power", 1.5),
    ("epsilon", None),
    ("weight", [[1.0]]),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ParameterError) as caught:
        merge_tensors(
            [torch.zeros(2), torch.ones(2)], "ram_plus", base_index=0, parameters={name: value}
        )
    shown = value[0] if isinstance(value, list) else value
    assert str(caught.value) == f"parameter '{name}' must be {RANGES[name]}; got {shown!r}"


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", ["1e-5", 0, 1, 0.5])
def test_numbers_are_taken_in_every_spelling_of_yaml(name, value):
    merge_tensors(
        [torch.zeros(2), torch.ones(2)], "ram_plus", base_index=0, parameters={name: value}
    )


def test_the_command_prints_one_line_and_writes_nothing(trio: Trio):
    config = trio.config("ram_plus", parameters={"alpha": -1})
    result = run_yaml(config, trio.folder / "out")
    assert result.exit_code == 1
    message = "Error: parameter 'alpha' must be a finite number ≥ 0; got -1"
    assert result.output.splitlines()[-1] == message
    assert "Traceback" not in result.output
    assert not (trio.folder / "out").exists()
