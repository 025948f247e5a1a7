"""Numbers that no merge can be reckoned with: refused by name, with the value, on every path."""

from __future__ import annotations

import math

import pytest
import torch

from mergekit_ram.kernels import ram
from mergekit_ram.kernels.blocks import KernelParameterError
from mergekit_ram.kernels.ram import count, merge

LARGEST = r"beyond float32, whose largest number is 3\.40282e\+38"


@pytest.fixture(params=["loops", "torch"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setenv(ram.DISABLE_VARIABLE, "0")
    assert ram.available() == (request.param == "loops")


def refused(message: str, dtype: torch.dtype = torch.float32, **settings: object) -> None:
    base = torch.zeros(4, dtype=dtype)
    agents = [torch.ones(4, dtype=dtype), torch.ones(4, dtype=dtype)]
    with pytest.raises(KernelParameterError, match=f"^{message}$"):
        merge(base, agents, **{"epsilon": 1e-5, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rescale": [1.0, math.nan]}, "rescale of agent 1 must be a finite number; got nan"),
        ({"rescale": [math.inf, 1.0]}, "rescale of agent 0 must be a finite number; got inf"),
        ({"rescale": [1.0, 1e100]}, rf"rescale of agent 1 is 1e\+100, {LARGEST}"),
        ({"rescale": [1.0]}, "rescale has 1 numbers for 2 agents"),
        ({"weight": [1.0, math.nan]}, "weight of agent 1 must be a finite number; got nan"),
        ({"weight": [1e39, 1.0]}, rf"weight of agent 0 is 1e\+39, {LARGEST}"),
        ({"weight": [1.0, 1.0, 1.0]}, "weight has 3 numbers for 2 agents"),
        ({"scale": math.inf}, "scale must be a finite number; got inf"),
        ({"scale": 1e39}, rf"scale is 1e\+39, {LARGEST}"),
        ({"scale": 10**400}, f"scale must be a finite number; got {10**400}"),
        ({"scale": "1"}, "scale must be a finite number; got 1"),
        ({"overlap_power": math.nan}, "overlap_power must be a finite number; got nan"),
        ({"overlap_power": 1e3}, r"overlap_power is 1000, so that \|T\|\^p is beyond float32"),
        ({"overlap_power": -1e9}, r"overlap_power is -1e\+09, so that \|T\|\^p is beyond float32"),
        (
            {"scale": 1e30, "weight": [1.0, 1e30]},
            rf"scale times rescale times weight of agent 1 is 1e\+60, {LARGEST}",
        ),
        (
            {"rescale": [1e30, 1.0], "weight": [-1e30, 1.0]},
            rf"scale times rescale times weight of agent 0 is -1e\+60, {LARGEST}",
        ),
        ({"epsilon": 1e39}, rf"epsilon is 1e\+39, {LARGEST}"),
        ({"epsilon": -1e-9}, "epsilon must be a finite number ≥ 0; got -1e-09"),
        ({"epsilon": None}, "epsilon must be a finite number ≥ 0; got None"),
        ({"chunk_size": 0}, "chunk_size must be a whole number ≥ 1; got 0"),
        ({"chunk_size": -5}, "chunk_size must be a whole number ≥ 1; got -5"),
        ({"chunk_size": 1.5}, r"chunk_size must be a whole number ≥ 1; got 1\.5"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_it_is_refused_by_name_and_value(settings, message):
    refused(message, **settings)


@pytest.mark.parametrize("settings", [{"epsilon": 1e39}, {"chunk_size": 0}])
def test_counting_refuses_what_it_uses(settings):
    with pytest.raises(KernelParameterError, match=r"epsilon is 1e\+39|chunk_size must be"):
        count(torch.zeros(4), [torch.ones(4)], **{"epsilon": 1e-5, **settings})


def test_float64_holds_what_float32_does_not():
    base, agent = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    assert merge(base, [agent], epsilon=1e-5, rescale=[1e100]).tolist() == [1e100, 1e100]
    assert merge(base, [agent], epsilon=1e39).tolist() == [0.0, 0.0]
    refused(
        r"scale times rescale times weight of agent 0 is inf, beyond float64, .*",
        dtype=torch.float64,
        scale=1e200,
        rescale=[1e200, 1.0],
    )


def test_a_threshold_that_underflows_is_nothing():
    tiny = torch.tensor([0.0, 1e-45])
    assert count(torch.zeros(2), [tiny], epsilon=1e-60).overlap_degree == ((1,),)
    assert count(torch.zeros(2), [tiny], epsilon=-0.0).overlap_degree == ((1,),)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_what_is_not_finite_is_found_whatever_hides_it(value, culprit):
    tensors = [torch.zeros(5000) for _ in range(3)]
    tensors[culprit][4321] = value
    base, *agents = tensors
    for settings in ({"scale": 0.0}, {"rescale": [0.0, 0.0]}, {"overlap_power": 0.5}):
        with pytest.raises(ValueError, match=f"holds {value}"):
            merge(base, agents, epsilon=1e30, **settings)
