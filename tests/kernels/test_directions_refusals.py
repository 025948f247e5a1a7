"""What the arithmetic over directions refuses, and the sizes of numbers that it does not."""

from __future__ import annotations

import pytest
import torch
from directions_reference import assert_close
from test_directions import expected_of, matrices

from mergekit_ram.kernels.blocks import KernelInputError, KernelOverflowError
from mergekit_ram.kernels.directions import KernelRidgeError, merge

SHAPES = [(40, 30), (5, 40), (64,)]


def models_of(shape: tuple[int, ...]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    base, models = matrices(shape[0], shape[1] if len(shape) > 1 else 1)
    return base.view(shape), [model.view(shape) for model in models]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("index", [0, 1, 3])
def test_numbers_that_are_none_are_refused_with_the_input_that_holds_them(shape, value, index):
    base, models = models_of(shape)
    inputs = [base, *models]
    inputs[index].view(-1)[-1] = value
    with pytest.raises(KernelInputError, match=f"holds {value}") as caught:
        merge(inputs[0], inputs[1:], epsilon=1e-5)
    assert caught.value.index == index


def test_an_infinity_that_all_inputs_share_is_refused_too():
    base, models = models_of((40, 30))
    for tensor in (base, *models):
        tensor[3, 4] = float("inf")
    with pytest.raises(KernelInputError, match="holds inf") as caught:
        merge(base, models, epsilon=1e-5)
    assert caught.value.index == 0


def test_values_that_the_input_dtype_cannot_hold_are_refused():
    base, models = models_of((40, 30))
    models[1][0, 0] = 1e6
    with pytest.raises(KernelInputError, match=r"do not fit torch\.float16") as caught:
        merge(base, models, epsilon=1e-5, dtype=torch.float16)
    assert caught.value.index == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_that_the_output_dtype_cannot_hold_is_refused(shape):
    base, models = models_of(shape)
    with pytest.raises(KernelOverflowError, match=r"does not fit torch\.float16, whose largest is"):
        merge(base, models, epsilon=1e-5, scale=1e10, out_dtype=torch.float16)
    with pytest.raises(KernelOverflowError, match=r"(overflow|does not fit) torch\.float32"):
        merge(base, models, epsilon=1e-5, weight=[1e38, 1.0, 1.0], scale=1e10)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_base_that_the_output_dtype_cannot_hold_is_refused_where_nothing_changed(shape):
    base = torch.full(shape, 7e4)
    for agents in ([], [base.clone(), base.clone()]):
        with pytest.raises(KernelOverflowError, match=r"does not fit torch\.float16"):
            merge(base, agents, epsilon=1e-5, out_dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float64_is_rounded_once_into_the_output(dtype):
    # Next to the middle of two neighbours, where rounding by way of float32 goes wrong.
    step = torch.finfo(dtype).eps / 2
    value = torch.tensor([[1 + step + 2**-30, 1 + step - 2**-30]], dtype=torch.float64)
    expected = torch.tensor([[1 + 2 * step, 1.0]], dtype=dtype)
    base = torch.zeros_like(value)
    assert torch.equal(merge(base, [value], epsilon=0.0, out_dtype=dtype), expected)
    assert torch.equal(merge(base, [value], epsilon=0.0, dtype=dtype), expected)
    assert torch.equal(merge(value, [], epsilon=0.0, out_dtype=dtype), expected)


def test_task_vectors_that_overflow_are_refused():
    base = torch.full((4, 3), -3e38)
    with pytest.raises(KernelOverflowError, match=r"the task vectors overflow torch\.float32"):
        merge(base, [-base, base * 0.5], epsilon=1e-5)


@pytest.mark.parametrize("shape", [(40, 30), (5, 40)])
@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e-8, 1e12, 1e25])
def test_updates_of_any_size_follow_the_formula(shape, size):
    base, models = models_of(shape)
    # Without a base to round them away.
    updates = [(model - base) * size for model in models]
    base = torch.zeros_like(base)
    merged = merge(base, updates, epsilon=0)
    assert_close(merged, expected_of(base, updates, epsilon=0), base, updates)


@pytest.mark.parametrize("shape", [(40, 30), (5, 40)])
def test_agents_of_very_different_sizes_follow_the_formula(shape):
    base, models = models_of(shape)
    updates = [(m - base) * size for m, size in zip(models, (1e-25, 1.0, 1e10), strict=True)]
    base = torch.zeros_like(base)
    merged = merge(base, updates, epsilon=0)
    assert_close(merged, expected_of(base, updates, epsilon=0), base, updates)
    weight = [1e30, 1.0, 1e-12]
    merged = merge(base, updates, epsilon=0, weight=weight)
    expected = expected_of(base, updates, epsilon=0, weight=weight)
    scaled = [w * update for w, update in zip(weight, updates, strict=True)]
    assert_close(merged, expected, base, scaled)


@pytest.mark.parametrize("shape", [(40, 30), (5, 40)])
def test_a_ridge_below_all_rounding_is_refused(shape):
    base, models = models_of(shape)
    with pytest.raises(KernelRidgeError, match=r"too small for torch\.float64"):
        merge(base, models, epsilon=1e-5, ridge=1e-30)


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ridge_out_of_range_is_refused(ridge):
    base, models = models_of((40, 30))
    with pytest.raises(ValueError, match="ridge must be a finite number > 0; got"):
        merge(base, models, epsilon=1e-5, ridge=ridge)


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
def test_an_epsilon_out_of_range_is_refused(epsilon):
    base, models = models_of((40, 30))
    with pytest.raises(ValueError, match="epsilon must be a finite number ≥ 0; got"):
        merge(base, models, epsilon=epsilon)


def test_other_shapes_and_dtypes_are_refused():
    base, models = models_of((40, 30))
    with pytest.raises(KernelInputError, match=r"has shape \[30\], the base \[40, 30\]"):
        merge(base, [models[0], models[1][0]], epsilon=1e-5)
    with pytest.raises(KernelInputError, match="no floating point"):
        merge(base, [models[0], models[1].int()], epsilon=1e-5)
