"""Counting and merging against the naive reference, in compiled loops and in torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import count as reference_count
from reference import merge_tensor, same_bits

from mergekit_ram.kernels.blocks import KernelOverflowError
from mergekit_ram.kernels.ram import count, merge, merge_and_count
from mergekit_ram.kernels.recipe import Recipe

pytestmark = pytest.mark.usefixtures("implementation")

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

CHUNK_SIZES = (1, 7, 64, 1000, None)


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A base and 1 to 10 agents that share, flip, zero and leave parameters alone."""
    shape = draw(st.lists(st.integers(1, 9), min_size=0, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    dtype = draw(st.sampled_from(DTYPES))
    base = torch.randn(shape, generator=generator, dtype=torch.float64) * 0.02
    base[torch.rand(shape, generator=generator) < 0.1] = draw(st.sampled_from([0.0, -0.0, 1e3]))
    agents = {}
    for number in range(draw(st.integers(1, 10))):
        own_dtype = draw(st.sampled_from([dtype, dtype, dtype, torch.float32]))
        touched = torch.rand(shape, generator=generator) < draw(st.floats(0, 1))
        step = torch.randn(shape, generator=generator, dtype=torch.float64)
        step *= draw(st.sampled_from([1e-5, 1e-3, 1.0]))
        value = torch.where(touched, base.to(dtype).double() + step, base.to(dtype).double())
        value[torch.rand(shape, generator=generator) < 0.05] = -0.0
        agents[f"agent {number}"] = value.to(own_dtype)
    return base.to(dtype), agents


@given(problems(), st.sampled_from([0.0, 1e-6, 1e-5, 1e-3]), st.sampled_from(CHUNK_SIZES))
def test_counts_are_those_of_the_reference(problem, epsilon, chunk_size):
    base, agents = problem
    counts = count(base, list(agents.values()), epsilon=epsilon, chunk_size=chunk_size)
    expected = reference_count({"w": base}, {n: {"w": t} for n, t in agents.items()}, epsilon)
    assert counts.numel == base.numel()
    assert [list(row) for row in counts.overlap_degree] == list(expected.overlap_degree.values())


@given(problems(), st.sampled_from([0.0, 1e-5, 1e-3]), st.sampled_from(CHUNK_SIZES))
def test_merging_and_counting_at_once_is_both(problem, epsilon, chunk_size):
    base, agents = problem
    tensors = list(agents.values())
    settings = {"epsilon": epsilon, "chunk_size": chunk_size}
    recipe = Recipe.of(len(tensors), epsilon, None, None, 1.0, 0.5, chunk_size=chunk_size)
    done = merge_and_count(recipe, base, tensors)
    assert done.counts == count(base, tensors, **settings)
    assert same_bits(done.tensor, merge(base, tensors, overlap_power=0.5, **settings))


@given(
    problems(),
    st.sampled_from([0.0, 1e-5, 1e-3]),
    st.floats(0, 2),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.sampled_from([1.0, 0.7, 0.0]),
    st.sampled_from([None, *DTYPES]),
    st.sampled_from(CHUNK_SIZES),
    st.data(),
)
def test_merges_are_those_of_the_reference(
    problem, epsilon, λ, power, scale, out_dtype, chunk_size, data
):
    base, agents = problem
    rescale = {name: data.draw(st.sampled_from([1.0, λ])) for name in agents}
    weight = {name: data.draw(st.sampled_from([1.0, 1.0, -0.5, 2.0])) for name in agents}
    expected = merge_tensor(
        base,
        agents,
        epsilon=epsilon,
        rescale=rescale,
        weight=weight,
        scale=scale,
        overlap_power=power,
    )
    promoted = base.dtype
    for tensor in agents.values():
        promoted = torch.promote_types(promoted, tensor.dtype)
    merged = merge(
        base,
        list(agents.values()),
        epsilon=epsilon,
        rescale=list(rescale.values()),
        weight=list(weight.values()),
        scale=scale,
        overlap_power=power,
        out_dtype=out_dtype,
        chunk_size=chunk_size,
    )
    assert same_bits(merged, expected.to(out_dtype or promoted))


@given(problems())
def test_unique_and_untouched_parameters_keep_every_bit(problem):
    base, agents = problem
    tensors = [tensor.to(base.dtype) for tensor in agents.values()]
    merged = merge(base, tensors, epsilon=1e-5)
    base_values, compute = base.double(), []
    for tensor in tensors:
        narrow = torch.float64 if base.dtype == torch.float64 else torch.float32
        compute.append((tensor.to(narrow) - base.to(narrow)).abs() > 1e-5)
    overlap = sum(mask.int() for mask in compute)
    assert same_bits(merged[overlap == 0], base[overlap == 0])
    for mask, tensor in zip(compute, tensors, strict=True):
        alone = mask & (overlap == 1)
        assert same_bits(merged[alone], tensor[alone])
    assert merged.shape == base_values.shape


def test_the_threshold_is_strict():
    base = torch.zeros(3)
    threshold = torch.tensor(1e-5)
    above = torch.nextafter(threshold, torch.tensor(1.0))
    below = torch.nextafter(threshold, torch.tensor(0.0))
    agent = torch.stack([below, threshold, above])
    assert count(base, [agent], epsilon=1e-5).overlap_degree == ((1,),)
    assert same_bits(merge(base, [agent], epsilon=1e-5), torch.stack([base[0], base[1], above]))


def test_an_agent_with_a_far_smaller_value_keeps_it_exactly():
    base, agent = torch.tensor([1.0]), torch.tensor([1e-9])
    for dtype in DTYPES:
        stored = agent.to(dtype)
        merged = merge(base.to(dtype), [stored], epsilon=1e-5)
        assert same_bits(merged, stored)


def test_strided_inputs_give_the_same_bytes():
    torch.manual_seed(0)
    base = torch.randn(60, 40)
    agents = [base + torch.randn(60, 40) * (torch.rand(60, 40) < 0.5) for _ in range(3)]
    straight = merge(base.T.contiguous(), [a.T.contiguous() for a in agents], epsilon=1e-5)
    strided = merge(base.T, [a.T for a in agents], epsilon=1e-5, chunk_size=100)
    assert same_bits(straight, strided)
    assert count(base.T, [a.T for a in agents], epsilon=1e-5, chunk_size=100) == count(
        base, agents, epsilon=1e-5
    )


def test_inputs_are_not_written_to():
    torch.manual_seed(0)
    for dtype in DTYPES:
        base = torch.randn(500).to(dtype)
        agents = [(base + torch.rand(500) * 1e-2).to(dtype) for _ in range(2)]
        before = [tensor.clone() for tensor in (base, *agents)]
        count(base, agents, epsilon=1e-5)
        merge(base, agents, epsilon=1e-5, rescale=[1.2, 1.1], weight=[2.0, 0.5])
        assert all(same_bits(a, b) for a, b in zip(before, (base, *agents), strict=True))


def test_the_number_of_threads_changes_no_byte():
    torch.manual_seed(0)
    base = torch.randn(300_001)
    agents = [base + torch.randn(300_001) * (torch.rand(300_001) < 0.4) for _ in range(3)]
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 6):
            torch.set_num_threads(threads)
            merged = merge(base, agents, epsilon=1e-5, rescale=[1.2, 1.1, 1.0])
            results.append((merged, count(base, agents, epsilon=1e-5)))
    finally:
        torch.set_num_threads(before)
    for merged, counts in results[1:]:
        assert same_bits(merged, results[0][0])
        assert counts == results[0][1]


def test_many_chunks_are_shared_out_without_a_gap():
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        base = torch.randn(3_000_001).to(dtype)
        agents = [base + torch.randn(3_000_001) * (torch.rand(3_000_001) < 0.4) for _ in range(2)]
        agents = [agent.to(dtype) for agent in agents]
        named = {f"{n}": agent for n, agent in enumerate(agents)}
        expected = merge_tensor(base, named, rescale={"0": 1.2, "1": 1.1})
        merged = merge(base, agents, epsilon=1e-5, rescale=[1.2, 1.1])
        assert same_bits(merged, expected.to(dtype))
        counts = count(base, agents, epsilon=1e-5).overlap_degree
        degrees = reference_count({"w": base}, {n: {"w": t} for n, t in named.items()})
        assert [list(row) for row in counts] == list(degrees.overlap_degree.values())


def test_the_largest_finite_bfloat16_is_no_overflow():
    largest = torch.tensor([torch.finfo(torch.bfloat16).max], dtype=torch.bfloat16)
    merged = merge(torch.zeros(1, dtype=torch.bfloat16), [largest], epsilon=1e-5)
    assert same_bits(merged, largest)
    above = largest.float() * 1.003
    message = r"does not fit torch\.bfloat16"
    with pytest.raises(KernelOverflowError, match=message):
        merge(torch.zeros(1), [above], epsilon=1e-5, out_dtype=torch.bfloat16)


def test_empty_and_scalar_tensors():
    empty = torch.zeros(0, 4)
    assert merge(empty, [empty], epsilon=1e-5).shape == (0, 4)
    assert count(empty, [empty], epsilon=1e-5).overlap_degree == ((0,),)
    merged = merge(torch.tensor(1.0), [torch.tensor(2.0)], epsilon=1e-5)
    assert same_bits(merged, torch.tensor(2.0))


def test_many_agents_are_counted_in_several_histograms():
    torch.manual_seed(0)
    base = torch.zeros(5_000)
    agents = {f"{n}": (torch.rand(5_000) < 0.3).float() for n in range(19)}
    counts = count(base, list(agents.values()), epsilon=1e-5)
    expected = reference_count({"w": base}, {n: {"w": t} for n, t in agents.items()})
    assert [list(row) for row in counts.overlap_degree] == list(expected.overlap_degree.values())
