"""What inspecting sums up, in compiled loops and in torch, against the formulas written naively."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import task_vectors

from mergekit_ram.kernels import ram
from mergekit_ram.kernels.blocks import KernelInputError, KernelOverflowError
from mergekit_ram.kernels.energies import ENERGIES, PAIRS, REALISED, observe, realise
from mergekit_ram.kernels.ram import count, merge_and_count
from mergekit_ram.kernels.recipe import Recipe

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
THRESHOLDS = (0.0, 1e-4, 1e-2)
WEIGHTS = (1.0, 0.5, -1.0, 2.0)
RESCALE = (1.2, 1.0, 1.1, 1.05)


def problem(
    agents: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (37, 91)
) -> list[torch.Tensor]:
    """A base and agents that share, oppose and leave parameters alone."""
    generator = torch.Generator().manual_seed(agents)
    base = torch.randn(shape, generator=generator) * 0.02
    tensors = [base]
    for number in range(agents):
        touched = torch.rand(shape, generator=generator) < 0.2 + 0.6 * number / agents
        step = torch.randn(shape, generator=generator) * 10.0 ** (-number % 3 - 3)
        tensors.append(torch.where(touched, base + step, base))
    return [tensor.to(dtype) for tensor in tensors]


def recipe_for(agents: int, **more: object) -> Recipe:
    weight = [WEIGHTS[number % len(WEIGHTS)] for number in range(agents)]
    rescale = [RESCALE[number % len(RESCALE)] for number in range(agents)]
    return Recipe.of(agents, 1e-5, rescale, weight, 0.8, 0.5, **more)


def deltas_of(tensors: list[torch.Tensor]) -> np.ndarray:
    """Task vectors ``[agents, parameters]`` as the merge takes them, in float64."""
    named = {str(number): tensor for number, tensor in enumerate(tensors[1:])}
    _, _, deltas = task_vectors(tensors[0], named)
    return torch.stack([delta.flatten() for delta in deltas.values()]).double().numpy()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("agents", [1, 3, 9])
def test_every_threshold_is_counted_as_counting_does(agents, dtype):
    base, *others = problem(agents, dtype)
    seen = observe(recipe_for(agents), base, others, thresholds=THRESHOLDS)
    for number, epsilon in enumerate((1e-5, *THRESHOLDS)):
        expected = count(base, others, epsilon=epsilon).overlap_degree
        assert seen.degree[0, number].tolist() == [list(row) for row in expected]
    assert seen.numels == (base.numel(),)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", DTYPES)
def test_energies_are_those_of_the_formulas(dtype):
    base, *others = problem(4, dtype)
    recipe = recipe_for(4)
    found = dict(zip(ENERGIES, observe(recipe, base, others).energies[0], strict=True))
    delta = deltas_of([base, *others])
    active = np.abs(delta) > recipe.epsilon
    overlap = active.sum(axis=0)
    added = 0.8 * (np.array(recipe.weight)[:, None] * delta * active).sum(axis=0)
    added /= np.sqrt(np.maximum(overlap, 1))
    square = active * delta**2
    assert found["energy"] == pytest.approx(square.sum(axis=1), rel=1e-12)
    assert found["unique_energy"] == pytest.approx((square * (overlap == 1)).sum(1), rel=1e-12)
    # The merge takes means in float32.
    shared = (active * delta * added * (overlap >= 2)).sum(axis=1)
    assert found["shared_energy"] == pytest.approx(shared, rel=1e-4)
    mean = (active * delta * delta.mean(axis=0)).sum(axis=1)
    assert found["mean_energy"] == pytest.approx(mean, rel=1e-4)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_are_those_of_the_formulas(dtype):
    base, *others = problem(4, dtype)
    seen = observe(recipe_for(4), base, others)
    found = dict(zip(PAIRS, seen.pairs[0], strict=True))
    delta = deltas_of([base, *others])
    active = np.abs(delta) > 1e-5
    for a in range(4):
        for b in range(4):
            both = active[a] & active[b] & (a != b)
            one, two = delta[a][both], delta[b][both]
            assert found["both"][a, b] == both.sum()
            assert found["agreement"][a, b] == (np.sign(one) * np.sign(two)).sum()
            assert found["dot"][a, b] == pytest.approx((one * two).sum(), rel=1e-12, abs=1e-15)
            assert found["square"][a, b] == pytest.approx((one**2).sum(), rel=1e-12)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_realised_is_what_two_merges_tell(dtype, out_dtype):
    base, *others = problem(4, dtype)
    recipe = recipe_for(4, out_dtype=out_dtype)
    found = dict(zip(REALISED, realise(recipe, base, others)[0], strict=True))
    merged = merge_and_count(recipe, base, others).tensor.flatten()
    plain = Recipe.of(4, 1e-5, None, recipe.weight, 0.8, 0.5, out_dtype=out_dtype)
    differs = (merged != merge_and_count(plain, base, others).tensor.flatten()).numpy()
    step = (merged.double() - base.flatten().double()).numpy()
    delta = deltas_of([base, *others])
    active = np.abs(delta) > 1e-5
    unique = active & (active.sum(axis=0) == 1)
    assert found["step"] == pytest.approx((unique * delta * step).sum(axis=1), rel=1e-12)
    assert found["changed"].tolist() == (unique & differs).sum(axis=1).tolist()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("chunk_size", [None, 64, 1500])
def test_pieces_are_summed_up_each_on_its_own(dtype, chunk_size):
    tensors = problem(3, dtype, (50, 80))
    rows = (1, 20, 4, 25)
    recipe = recipe_for(3, chunk_size=chunk_size)
    numels = [80 * height for height in rows]
    seen = observe(recipe, tensors[0], tensors[1:], thresholds=THRESHOLDS, numels=numels)
    real = realise(recipe, tensors[0], tensors[1:], numels=numels)
    assert seen.numels == tuple(numels)
    start = 0
    for number, height in enumerate(rows):
        base, *others = (tensor[start : start + height] for tensor in tensors)
        alone = observe(recipe, base, others, thresholds=THRESHOLDS)
        assert seen.degree[number].tolist() == alone.degree[0].tolist()
        assert seen.energies[number] == pytest.approx(alone.energies[0], rel=1e-12)
        assert seen.pairs[number] == pytest.approx(alone.pairs[0], rel=1e-12)
        assert real[number] == pytest.approx(realise(recipe, base, others)[0], rel=1e-12)
        start += height


@pytest.mark.usefixtures("implementation")
def test_strided_and_empty_tensors_and_no_agent_at_all_are_seen():
    base, *others = (tensor.T for tensor in problem(3))
    seen = observe(recipe_for(3), base, others)
    straight = observe(recipe_for(3), base.contiguous(), [each.contiguous() for each in others])
    assert seen.degree.tolist() == straight.degree.tolist()
    assert seen.pairs == pytest.approx(straight.pairs, rel=1e-12)
    empty = observe(recipe_for(3), *[problem(3, shape=(0,))[0], problem(3, shape=(0,))[1:]])
    assert (empty.degree.sum(), empty.energies.sum()) == (0, 0)
    alone = observe(recipe_for(0), base, [])
    assert alone.degree.shape == (1, 1, 0, 0)
    assert realise(recipe_for(0), base, []).shape == (1, 2, 0)


@pytest.mark.usefixtures("implementation")
def test_the_same_bytes_come_whatever_the_threads():
    base, *others = problem(3, torch.bfloat16, (300, 1000))
    recipe = recipe_for(3, chunk_size=9000)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            seen = observe(recipe, base, others, thresholds=THRESHOLDS)
            arrays = seen.degree, seen.energies, seen.pairs, realise(recipe, base, others)
            found.append(tuple(array.tobytes() for array in arrays))
    finally:
        torch.set_num_threads(before)
    assert len(set(found)) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_loops_and_torch_say_the_same(dtype, monkeypatch):
    assert ram.available()
    base, *others = problem(9, dtype)
    recipe = recipe_for(9)
    loops = observe(recipe, base, others, thresholds=THRESHOLDS), realise(recipe, base, others)
    monkeypatch.setenv(ram.DISABLE_VARIABLE, "0")
    plain = observe(recipe, base, others, thresholds=THRESHOLDS), realise(recipe, base, others)
    assert loops[0].degree.tolist() == plain[0].degree.tolist()
    assert loops[0].energies == pytest.approx(plain[0].energies, rel=1e-12)
    assert loops[0].pairs == pytest.approx(plain[0].pairs, rel=1e-12, abs=1e-15)
    assert loops[1] == pytest.approx(plain[1], rel=1e-12)


@pytest.mark.usefixtures("implementation")
def test_broken_inputs_and_overflows_are_refused_as_by_the_merge():
    base, *others = problem(3)
    others[1].view(-1)[5] = float("nan")
    with pytest.raises(KernelInputError, match="holds nan") as refused:
        observe(recipe_for(3), base, others)
    assert refused.value.index == 2
    base, *others = (tensor * 1e3 for tensor in problem(3))
    recipe = Recipe.of(3, 1e-5, None, None, 1e6, 1.0, out_dtype=torch.float16)
    with pytest.raises(KernelOverflowError, match=r"does not fit torch\.float16"):
        realise(recipe, base, others)
    with pytest.raises(ValueError, match="epsilon must be a finite number"):
        observe(recipe, base, others, thresholds=[-1.0])
