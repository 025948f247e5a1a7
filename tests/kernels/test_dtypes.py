"""Loops, torch operations and the naive reference: the same bytes for every pair of dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import merge_tensor, same_bits

from mergekit_ram.kernels import ram
from mergekit_ram.kernels.blocks import KernelOverflowError, rounded
from mergekit_ram.kernels.ram import count, merge_and_count
from mergekit_ram.kernels.recipe import Recipe

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.float16)
NEAR_ONE = (1.0, 1 + 2**-52, 1 - 2**-53, 1 + 1e-10, 1 + 2**-25, 1 + 2**-24, 1 + 2**-23, 0.7 / 0.7)


@contextmanager
def in_torch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ram.DISABLE_VARIABLE, "0")
        assert not ram.available()
        yield


@st.composite
def values(draw: st.DrawFn, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Any finite numbers of a dtype: patterns drawn as integers, so subnormal and huge ones too."""
    width = 8 * dtype.itemsize
    whole = getattr(torch, f"int{width}")
    patterns = draw(
        st.lists(
            st.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 1), min_size=size, max_size=size
        )
    )
    found = torch.tensor(patterns, dtype=whole).view(dtype)
    # Not so large that a sum of a few overflows.
    limit = math.sqrt(torch.finfo(dtype).max)
    return torch.where(found.abs() < limit, found, torch.zeros((), dtype=dtype))


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor]]:
    size = draw(st.integers(1, 9))
    base = draw(values(draw(st.sampled_from(DTYPES)), size))
    agents = []
    for _ in range(draw(st.integers(1, 5))):
        agent = draw(values(draw(st.sampled_from([base.dtype, *DTYPES])), size))
        if agent.dtype == base.dtype:
            # Many parameters stay as they are.
            agent = torch.where(
                torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))),
                agent,
                base,
            )
        agents.append(agent)
    # Long enough for strips, and for counting by four.
    times = draw(st.sampled_from([1, 1, 700]))
    return base.repeat(times), [agent.repeat(times) for agent in agents]


def nearest(exact: Fraction, dtype: torch.dtype) -> float:
    """The value of a narrow dtype that is nearest, the even one of two: by plain search."""
    patterns = torch.arange(2**15, dtype=torch.int16).view(dtype).double()
    finite = patterns[patterns.isfinite()]
    size = abs(exact)
    below = int((finite <= float(size)).sum()) - 1
    candidates = range(max(0, below - 1), min(len(finite), below + 3))
    best = min(candidates, key=lambda n: (abs(Fraction(float(finite[n])) - size), n % 2))
    last = Fraction(float(finite[-1]))
    half_step = (last - Fraction(float(finite[-2]))) / 2
    found = math.inf if size >= last + half_step else float(finite[best])
    return math.copysign(found, exact)


@given(st.data(), st.sampled_from(NARROW))
def test_float64_is_rounded_once(data, dtype):
    value = data.draw(st.floats(allow_nan=False, allow_infinity=False))
    value = data.draw(
        st.sampled_from([value, float(torch.tensor(value, dtype=torch.float64).to(dtype))])
    )
    if not math.isfinite(value):
        value = 1.0
    # Next to the middle of two neighbours, where rounding twice goes wrong.
    step = data.draw(st.sampled_from([0.0, 2**-8, 2**-9, 2**-11, 2**-12]))
    value *= 1 + step + data.draw(st.sampled_from([0.0, 2**-30, -(2**-30), 2**-40]))
    if not math.isfinite(value):
        value = 1.0
    once = rounded(torch.tensor([value], dtype=torch.float64), dtype)
    assert float(once) == nearest(Fraction(value), dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_the_middles_of_all_neighbours_are_rounded_as_they_should_be(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).double()
    every = every[every.isfinite()].unique()
    middles = (every[1:] + every[:-1]) / 2
    infinity = torch.tensor(math.inf, dtype=torch.float64)
    assert torch.equal(rounded(middles.nextafter(infinity), dtype).double(), every[1:])
    assert torch.equal(rounded(middles.nextafter(-infinity), dtype).double(), every[:-1])
    assert torch.all(rounded(middles, dtype).view(torch.int16) & 1 == 0)


@pytest.mark.parametrize("path", ["loops", "torch"])
def test_all_float16_values_go_through_unchanged(path):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    every = every[every.isfinite()]
    for base in (every, torch.full_like(every, 0.5)):
        recipe = Recipe.of(1, 0.0, None, None, 1.0, 1.0)
        if path == "torch":
            with in_torch():
                merged = merge_and_count(recipe, base, [every]).tensor
        else:
            assert ram.available()
            merged = merge_and_count(recipe, base, [every]).tensor
        # Equal values take the base's zero.
        assert torch.equal(merged, every)
        assert same_bits(merged[every != 0], every[every != 0])


@pytest.mark.parametrize("path", ["loops", "torch"])
@pytest.mark.parametrize("out_dtype", NARROW)
def test_float32_is_rounded_to_every_neighbour_and_middle(path, out_dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(out_dtype)
    every = every[every.isfinite()].double().unique()
    middles = ((every[1:] + every[:-1]) / 2).float()
    infinity = torch.tensor(math.inf)
    agent = torch.cat([every.float(), middles, middles.nextafter(infinity)])
    agent = torch.cat([agent, middles.nextafter(-infinity)])
    recipe = Recipe.of(1, 0.0, None, None, 1.0, 1.0, out_dtype=out_dtype)
    if path == "torch":
        with in_torch():
            merged = merge_and_count(recipe, torch.zeros_like(agent), [agent]).tensor
    else:
        merged = merge_and_count(recipe, torch.zeros_like(agent), [agent]).tensor
    assert same_bits(merged[agent != 0], agent.to(out_dtype)[agent != 0])


@given(
    problems(),
    st.sampled_from([0.0, 1e-6, 1e-3]),
    st.sampled_from(NEAR_ONE),
    st.sampled_from([*NEAR_ONE, 0.3]),
    st.sampled_from([1.0, 1 + 2**-30, 0.5, -1.0]),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([None, *DTYPES]),
)
def test_both_paths_and_the_reference_agree_bit_for_bit(
    problem, epsilon, scale, λ, weight, power, out_dtype
):
    base, agents = problem
    names = [f"agent {number}" for number in range(len(agents))]
    expected = merge_tensor(
        base,
        dict(zip(names, agents, strict=True)),
        epsilon=epsilon,
        rescale=dict.fromkeys(names, λ),
        weight=dict.fromkeys(names, weight),
        scale=scale,
        overlap_power=power,
    )
    promoted = base.dtype
    for agent in agents:
        promoted = torch.promote_types(promoted, agent.dtype)
    recipe = Recipe.of(
        len(agents),
        epsilon,
        [λ] * len(agents),
        [weight] * len(agents),
        scale,
        power,
        out_dtype=out_dtype,
    )
    wanted = rounded(expected, out_dtype or promoted)
    if not torch.isfinite(wanted).all():
        with pytest.raises(KernelOverflowError):
            merge_and_count(recipe, base, agents)
        with in_torch(), pytest.raises(KernelOverflowError):
            merge_and_count(recipe, base, agents)
        return
    loops = merge_and_count(recipe, base, agents)
    with in_torch():
        operations = merge_and_count(recipe, base, agents)
        counts = count(base, agents, epsilon=epsilon)
    assert same_bits(loops.tensor, wanted)
    assert same_bits(operations.tensor, wanted)
    assert loops.counts == operations.counts == counts == count(base, agents, epsilon=epsilon)


@given(problems(), st.sampled_from(NARROW), st.sampled_from([0.0, 1e-3]))
def test_rounding_the_inputs_first_rounds_them_once_on_both_paths(problem, dtype, epsilon):
    base, agents = problem
    largest = torch.finfo(dtype).max
    base, *agents = (
        torch.where(tensor.double().abs() <= largest, tensor, torch.zeros_like(tensor))
        for tensor in (base, *agents)
    )
    recipe = Recipe.of(len(agents), epsilon, None, None, 1.0, 1.0, dtype=dtype)
    plain = Recipe.of(len(agents), epsilon, None, None, 1.0, 1.0)
    narrow = merge_and_count(plain, rounded(base, dtype), [rounded(a, dtype) for a in agents])
    loops = merge_and_count(recipe, base, agents)
    with in_torch():
        operations = merge_and_count(recipe, base, agents)
    assert same_bits(loops.tensor, narrow.tensor)
    assert same_bits(operations.tensor, narrow.tensor)
    assert loops.counts == operations.counts == narrow.counts


@pytest.mark.parametrize("path", ["loops", "torch"])
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_whether_a_value_fits_is_asked_of_the_rounded_one(path, source):
    below = torch.tensor([65520.0], dtype=source).nextafter(torch.zeros((), dtype=source))
    recipe = Recipe.of(1, 0.0, None, None, 1.0, 1.0, out_dtype=torch.float16)
    with pytest.MonkeyPatch.context() as patch:
        if path == "torch":
            patch.setenv(ram.DISABLE_VARIABLE, "0")
        assert float(merge_and_count(recipe, torch.zeros_like(below), [below]).tensor) == 65504.0
        with pytest.raises(KernelOverflowError, match=r"does not fit torch\.float16"):
            merge_and_count(recipe, torch.zeros_like(below), [torch.full_like(below, 65520.0)])


@pytest.mark.parametrize("λ", [1 + 2**-52, 1 + 1e-10, 1 - 1e-9])
@pytest.mark.parametrize("path", ["loops", "torch"])
def test_a_factor_that_rounds_to_one_leaves_the_agent_whole(path, λ):
    generator = torch.Generator().manual_seed(0)
    base, agent = (torch.randn(100_000, generator=generator) for _ in range(2))
    recipe = Recipe.of(1, 0.0, [λ], None, 1.0, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        if path == "torch":
            patch.setenv(ram.DISABLE_VARIABLE, "0")
        assert same_bits(merge_and_count(recipe, base, [agent]).tensor, agent)
