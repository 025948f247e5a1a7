"""What the kernels refuse, and the memory that they need."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from mergekit_ram.kernels import blocks
from mergekit_ram.kernels.blocks import KernelInputError, KernelOverflowError
from mergekit_ram.kernels.ram import count, merge

pytestmark = pytest.mark.usefixtures("implementation")

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_are_refused(value, culprit, dtype):
    tensors = [torch.ones(1000, dtype=dtype) for _ in range(3)]
    tensors[culprit][777] = value
    for kernel in (count, merge):
        with pytest.raises(KernelInputError, match=f"holds {value}") as caught:
            kernel(tensors[0], tensors[1:], epsilon=1e-5, chunk_size=100)
        assert caught.value.index == culprit


def test_infinity_in_base_and_agent_alike_is_refused():
    infinite = torch.tensor([1.0, float("inf")])
    for kernel in (count, merge):
        with pytest.raises(KernelInputError, match="holds inf") as caught:
            kernel(infinite, [infinite.clone()], epsilon=1e-5)
        assert caught.value.index == 0


@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7F800001, 0x7FFF8000, -0x8000])
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_every_nan_is_refused_and_never_rounded_to_a_number(bits, out_dtype):
    nan = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    for culprit in range(3):
        tensors = [torch.ones(1000), torch.ones(1000), torch.full((1000,), 2.0)]
        tensors[culprit][60] = nan
        with pytest.raises(KernelInputError, match="holds nan"):
            merge(tensors[0], tensors[1:], epsilon=1e-5, out_dtype=out_dtype)


def test_a_result_too_large_for_the_output_is_refused():
    base, agent = torch.zeros(4), torch.full((4,), 7e4)
    assert merge(base, [agent], epsilon=1e-5).max() == 7e4
    message = "a merged value of size 70000 does not fit torch.float16, whose largest is 65504"
    with pytest.raises(KernelOverflowError, match=message):
        merge(base, [agent], epsilon=1e-5, out_dtype=torch.float16)
    with pytest.raises(KernelOverflowError, match=r"overflow torch\.float32"):
        merge(base, [torch.full((4,), 3e38)], epsilon=1e-5, scale=10.0)


def test_the_largest_finite_value_is_no_overflow():
    largest = torch.tensor([torch.finfo(torch.float16).max])
    merged = merge(torch.zeros(1), [largest], epsilon=1e-5, out_dtype=torch.float16)
    assert float(merged) == 65504.0


def test_inputs_that_overflow_a_narrower_dtype_are_refused():
    base, agent = torch.zeros(4), torch.full((4,), 7e4)
    for kernel in (count, merge):
        with pytest.raises(KernelInputError, match=r"do not fit torch\.float16") as caught:
            kernel(base, [agent], epsilon=1e-5, dtype=torch.float16)
        assert caught.value.index == 1


@pytest.mark.parametrize("shape", [(2, 2), (1,), (5,), ()])
def test_other_shapes_are_refused_and_never_broadcast(shape):
    for kernel in (count, merge):
        with pytest.raises(KernelInputError, match=r"has shape .*, the base \[4\]") as caught:
            kernel(torch.zeros(4), [torch.zeros(4), torch.ones(shape)], epsilon=1e-5)
        assert caught.value.index == 2


def test_integers_are_refused():
    for kernel in (count, merge):
        with pytest.raises(KernelInputError, match=r"is of torch\.int64"):
            kernel(torch.zeros(4), [torch.ones(4, dtype=torch.int64)], epsilon=1e-5)


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
def test_a_threshold_out_of_range_is_refused(epsilon):
    for kernel in (count, merge):
        with pytest.raises(ValueError, match="epsilon must be a finite number"):
            kernel(torch.zeros(4), [torch.ones(4)], epsilon=epsilon)


def test_parameters_that_require_gradients_are_merged_without():
    base = torch.nn.Parameter(torch.ones(4))
    agent = torch.nn.Parameter(torch.full((4,), 2.0))
    merged = merge(base, [agent], epsilon=1e-5)
    assert not merged.requires_grad
    assert torch.equal(merged, torch.full((4,), 2.0))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("kernel", ["count", "merge", "merge plus", "strided merge"])
def test_memory_does_not_grow_with_the_number_of_agents(kernel):
    numel, allowance = 8_000_000, 16e6
    base = torch.zeros(numel, dtype=torch.bfloat16)
    agents = [torch.full((numel,), float(n), dtype=torch.bfloat16) for n in range(4)]
    if kernel == "strided merge":
        base, agents = base.view(4000, -1).T, [agent.view(4000, -1).T for agent in agents]
    run = {
        "count": lambda *tensors: count(*tensors, epsilon=1e-5),
        "merge": lambda *tensors: merge(*tensors, epsilon=1e-5),
        "merge plus": lambda *tensors: merge(*tensors, epsilon=1e-5, rescale=[1.1] * 4),
        "strided merge": lambda *tensors: merge(*tensors, epsilon=1e-5),
    }[kernel]
    # The first call loads code and starts threads.
    run(base[: len(base) // 8], [agent[: len(base) // 8] for agent in agents])
    output = 0 if kernel == "count" else numel * 2
    assert _peak_growth(lambda: run(base, agents)) < output + allowance


def _peak_growth(run) -> int:
    """Bytes by which the resident memory rises above its start while ``run`` runs."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if field in line
    )
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("kernel", [count, merge])
def test_the_first_broken_value_is_named_for_any_number_of_threads(kernel, threads):
    base = torch.zeros(64)
    agents = [torch.ones(64) for _ in range(3)]
    # The second chunk goes to a later thread than the ninth, which is the first thread's.
    agents[2][5], agents[0][33] = float("nan"), float("inf")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.raises(KernelInputError, match="holds nan") as caught:
            kernel(base, agents, epsilon=1e-5, chunk_size=4)
    finally:
        torch.set_num_threads(before)
    assert caught.value.index == 3


def test_threads_that_merge_at_once_leave_torch_its_threads():
    before, found = torch.get_num_threads(), []
    inside, left = threading.Barrier(2), threading.Event()

    def own(is_first):
        def work(block, place):
            inside.wait(60)
            if not is_first:
                assert left.wait(60)

        blocks.walk(blocks.Inputs([torch.zeros(4)]), work)
        found.append(torch.get_num_threads())
        left.set()

    torch.set_num_threads(3)
    try:
        threads = [threading.Thread(target=own, args=(first,)) for first in (True, False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
    finally:
        torch.set_num_threads(before)
    assert found == [3, 3, 3]
