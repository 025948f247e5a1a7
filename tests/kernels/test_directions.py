"""The arithmetic over directions: the vectors, the naive formula, and what must hold of any."""

from __future__ import annotations

import json
from pathlib import Path

import directions_reference as reference
import pytest
import torch
from directions_reference import assert_close
from reference import same_bits
from safetensors.torch import load_file

from mergekit_ram.kernels.directions import Layout, merge

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "directions.json").read_text())
VECTORS = load_file(DATA / "directions.safetensors")

EXPERTS = Layout(packed=True)


def matrices(
    out: int, width: int, agents: int = 3, rank: int | None = None, seed: int = 0
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A base, and agents whose updates have that rank."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(out, width, generator=generator) * 0.05
    rank = rank or min(out, width)
    updates = [
        torch.randn(out, rank, generator=generator) @ torch.randn(rank, width, generator=generator)
        for _ in range(agents)
    ]
    return base, [base + update * 1e-3 / rank**0.5 for update in updates]


def expected_of(base, agents, **settings) -> torch.Tensor:
    weights = settings.pop("weight", [1.0] * len(agents))
    names = [str(number) for number in range(len(agents))]
    return reference.merge_tensor(
        base,
        dict(zip(names, agents, strict=True)),
        weight=dict(zip(names, weights, strict=True)),
        **settings,
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_vectors_are_reproduced(name, dtype):
    options = dict(CASES[name])
    base = VECTORS[f"{name}.base"]
    agents = [VECTORS[f"{name}.agent{t}"] for t in range(options.pop("agents"))]
    options = {"epsilon": 1e-5} | options
    merged = merge(base.to(dtype), [a.to(dtype) for a in agents], layout=EXPERTS, **options)
    assert merged.dtype == dtype
    assert_close(merged, VECTORS[f"{name}.expected"], base, agents, name)


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (5, 40), (700, 3), (3, 700), (1, 9), (9, 1)])
@pytest.mark.parametrize("agents", [2, 5])
@pytest.mark.parametrize("rank", [None, 1])
def test_both_sides_of_a_matrix_follow_the_formula(shape, agents, rank):
    base, models = matrices(*shape, agents=agents, rank=rank)
    # A block of one element has as many lines as one may have at least.
    for block in (None, 1):
        merged = merge(base, models, epsilon=1e-5, block=block)
        assert_close(merged, expected_of(base, models), base, models)


@pytest.mark.parametrize("ridge", [1e-6, 0.05, 1.0, 100.0])
def test_a_ridge_that_float32_cannot_hold_is_reckoned_with_in_float64(ridge):
    base, models = matrices(64, 48, rank=2)
    merged = merge(base, models, epsilon=1e-5, ridge=ridge)
    assert_close(merged, expected_of(base, models, ridge=ridge), base, models)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_are_rounded_once_at_the_end(dtype):
    base, models = matrices(64, 48)
    base, models = base.to(dtype), [model.to(dtype) for model in models]
    merged = merge(base, models, epsilon=1e-5)
    assert merged.dtype == dtype
    assert_close(merged, expected_of(base, models), base, models)
    wide = merge(base, models, epsilon=1e-5, out_dtype=torch.float32)
    assert same_bits(wide.to(dtype), merged)


def test_the_order_of_the_agents_does_not_matter():
    base, models = matrices(40, 30, agents=4)
    expected = expected_of(base, models)
    weight = [1.0, 0.5, 2.0, -0.3]
    weighted = expected_of(base, models, weight=weight)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        turned = [models[t] for t in order]
        assert_close(merge(base, turned, epsilon=1e-5), expected, base, models)
        merged = merge(base, turned, epsilon=1e-5, weight=[weight[t] for t in order])
        assert_close(merged, weighted, base, models)


def test_one_agent_is_kept_whole():
    base, (model,) = matrices(40, 30, agents=1)
    merged = merge(base, [model], epsilon=0)
    torch.testing.assert_close(merged, model, rtol=0, atol=1e-8)
    half = merge(base, [model], epsilon=0, weight=[0.5], scale=0.5)
    torch.testing.assert_close(half, base + (model - base) / 4, rtol=0, atol=1e-8)


def test_agents_without_a_change_are_left_out():
    base, models = matrices(40, 30)
    with_idle = [base.clone(), models[0], base.clone(), models[1], models[2]]
    expected = merge(base, models, epsilon=1e-5)
    torch.testing.assert_close(merge(base, with_idle, epsilon=1e-5), expected, rtol=0, atol=1e-8)
    alone = merge(base, [base.clone(), models[0]], epsilon=1e-5)
    assert same_bits(alone, merge(base, models[:1], epsilon=1e-5))


def test_changes_below_epsilon_leave_the_base_bit_for_bit():
    base, models = matrices(40, 30)
    base[0, 0] = -0.0
    for agents in (models, models[:1], []):
        assert same_bits(merge(base, agents, epsilon=1.0), base)
    assert same_bits(merge(base.bfloat16(), [], epsilon=0), base.bfloat16())


def test_identical_agents_change_the_directions_that_they_use_as_one_does():
    base, (model,) = matrices(40, 30, agents=1, rank=3)
    merged = merge(base, [model] * 3, epsilon=0, ridge=1e-4)
    update, change = (model - base).double(), (merged - base).double()
    # What the merge does to inputs along the agents' own directions.
    torch.testing.assert_close(change @ update.T, update @ update.T, rtol=2e-2, atol=1e-9)


def test_agents_of_disjoint_directions_are_kept_whole_there():
    base, _ = matrices(40, 30)
    generator = torch.Generator().manual_seed(1)
    models, spaces = [], []
    frame = torch.linalg.qr(torch.randn(30, 30, generator=generator))[0]
    for t in range(3):
        spaces.append(frame[:, 10 * t : 10 * t + 2])
        models.append(base + 1e-2 * torch.randn(40, 2, generator=generator) @ spaces[t].T)
    merged = merge(base, models, epsilon=0, ridge=1e-3)
    for model, space in zip(models, spaces, strict=True):
        torch.testing.assert_close(
            (merged - base) @ space, (model - base) @ space, rtol=0, atol=2e-4
        )


def test_scale_multiplies_what_is_added():
    base, models = matrices(40, 30)
    whole, half = (merge(base, models, epsilon=1e-5, scale=scale) for scale in (1.0, 0.5))
    torch.testing.assert_close(half - base, (whole - base) / 2, rtol=0, atol=1e-8)
    assert same_bits(merge(base, models, epsilon=1e-5, scale=0.0), base)


def test_a_vector_is_merged_by_length():
    base = torch.zeros(4)
    agents = [torch.tensor([3.0, 1.0, 0.0, 2.0]), torch.tensor([4.0, 1.0, 0.0, -2.0])]
    merged = merge(base, agents, epsilon=1e-5)
    torch.testing.assert_close(merged, torch.tensor([5.0, 2**0.5, 0.0, 0.0]))
    scalar = merge(base[0], [agent[0] for agent in agents], epsilon=1e-5)
    torch.testing.assert_close(scalar, torch.tensor(5.0))
    matrix = merge(base.view(2, 2), [a.view(2, 2) for a in agents], epsilon=1e-5)
    bias = Layout(has_matrices=False)
    plain = merge(base.view(2, 2), [a.view(2, 2) for a in agents], epsilon=1e-5, layout=bias)
    assert same_bits(plain.flatten(), merged)
    assert not torch.allclose(matrix.flatten(), merged)


def test_experts_and_convolutions_are_matrices_in_either_order():
    base, models = matrices(4 * 10, 6 * 3)
    kernel = [tensor.view(40, 6, 3) for tensor in (base, *models)]
    flat = merge(base, models, epsilon=1e-5)
    assert same_bits(merge(kernel[0], kernel[1:], epsilon=1e-5).view(40, 18), flat)
    packed = [tensor.view(4, 10, 18) for tensor in (base, *models)]
    merged = merge(packed[0], packed[1:], epsilon=1e-5, layout=EXPERTS)
    for expert in range(4):
        own = merge(packed[0][expert], [p[expert] for p in packed[1:]], epsilon=1e-5)
        assert same_bits(merged[expert], own)
    turned = [tensor.transpose(1, 2).contiguous() for tensor in packed]
    layout = Layout(input_last=False, packed=True)
    other = merge(turned[0], turned[1:], epsilon=1e-5, layout=layout)
    assert same_bits(other.transpose(1, 2).contiguous(), merged)


def test_inputs_of_any_strides_and_with_gradients_are_left_alone():
    base, models = matrices(40, 30)
    expected = merge(base, models, epsilon=1e-5)
    turned = [tensor.T.contiguous().T for tensor in (base, *models)]
    before = [tensor.clone() for tensor in turned]
    assert same_bits(merge(turned[0], turned[1:], epsilon=1e-5), expected)
    assert all(same_bits(a, b) for a, b in zip(turned, before, strict=True))
    learned = [torch.nn.Parameter(tensor.clone()) for tensor in (base, *models)]
    merged = merge(learned[0], learned[1:], epsilon=1e-5)
    assert same_bits(merged, expected)
    assert not merged.requires_grad


def test_the_same_call_gives_the_same_bytes_whatever_precision_the_caller_has():
    base, models = matrices(300, 200)
    expected = merge(base, models, epsilon=1e-5)
    assert same_bits(merge(base, models, epsilon=1e-5), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bits(merge(base, models, epsilon=1e-5), expected)
    torch.set_float32_matmul_precision("medium")
    try:
        assert same_bits(merge(base, models, epsilon=1e-5), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_empty_tensors_stay_empty():
    for shape in ((0,), (0, 5), (5, 0), (0, 3, 4)):
        empty = torch.empty(shape)
        assert merge(empty, [empty, empty], epsilon=1e-5, layout=EXPERTS).shape == shape
