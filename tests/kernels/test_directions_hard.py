"""Merging over directions where rounding is large: right, or refused."""

from __future__ import annotations

import pytest
import torch
from directions_reference import TOLERANCE
from hard_directions import FILE, RIDGES, Case, cases
from safetensors.torch import load_file

from mergekit_ram.kernels.directions import KernelRidgeError, merge

TRUTH = load_file(FILE)
CASES = list(cases())


def error_of(case: Case, dtype: torch.dtype) -> float | None:
    """Of the largest update; None where the ridge is refused."""
    agents = [torch.from_numpy(agent) for agent in case.agents]
    expected = TRUTH[case.name].double()
    typed = [agent.to(dtype) for agent in agents]
    try:
        merged = merge(torch.zeros_like(typed[0]), typed, epsilon=0.0, ridge=case.ridge)
    except KernelRidgeError:
        return None
    largest = max(float(agent.abs().max()) for agent in agents)
    return float((merged.double() - expected).abs().max()) / largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ridge", RIDGES)
def test_hard_cases_are_right_or_refused(ridge, dtype):
    found = {case.name: error_of(case, dtype) for case in CASES if case.ridge == ridge}
    assert len(found) == len(CASES) // len(RIDGES)
    wrong = {name: error for name, error in found.items() if error and error > TOLERANCE}
    assert not wrong
    refused = [name for name, error in found.items() if error is None]
    assert not refused or ridge < 1e-6


@pytest.mark.parametrize(("shape", "dtype"), [((256, 2048), "float32"), ((8, 4096), "bfloat16")])
def test_dependent_agents_of_a_wide_matrix_are_right(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(shape, generator=generator).mul_(1e-3) for _ in range(2))
    agents = [tensor.to(getattr(torch, dtype)) for tensor in (one, two)]
    agents.append(2 * agents[0])
    base = torch.zeros_like(agents[0])
    merged = merge(base, agents, epsilon=0.0, out_dtype=torch.float32)
    wide = merge(base.double(), [agent.double() for agent in agents], epsilon=0.0)
    largest = max(float(agent.abs().max()) for agent in agents)
    assert float((merged - wide).abs().max()) < TOLERANCE * largest


def test_the_cases_are_those_of_the_file():
    assert {case.name for case in CASES} == set(TRUTH)
