"""A walk over equally shaped tensors, block by block, and the way of results into a tensor.

A block holds the same stretch of every input in one dtype. Its memory is used again for the next
one, so memory does not grow with the tensors. Inputs are never written to.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import TypeVar

import torch

CPU_ROOM = 4 << 20
"""Bytes of a block, all inputs together: few enough for the processor's caches, enough to make
the calls for a block short beside its arithmetic."""

ACCELERATOR_BLOCK = 4_194_304
"""Elements of one input in a block elsewhere: enough to fill a GPU."""

THREAD_START = 262_144
"""Elements that are merged in the time that a thread takes to start, some 350 µs."""

T = TypeVar("T")

_COUNTING = threading.Lock()
_BEFORE: list[int] = []
"""How many threads torch goes back to, for each thread that is in :func:`one_thread`."""


class KernelInputError(ValueError):
    """A tensor that no formula holds for; ``index`` says which input: 0 is the base, t agent t."""

    def __init__(self, index: int, problem: str):
        super().__init__(problem)
        self.index = index
        self.problem = problem


class KernelOverflowError(ValueError):
    """Finite inputs whose merge the output dtype cannot hold."""


class KernelParameterError(ValueError):
    """A number that cannot be computed with; ``agent`` is the index of whose it is, if any's."""

    def __init__(self, name: str, problem: str, agent: int | None = None):
        whose = "" if agent is None else f" of agent {agent}"
        super().__init__(f"{name}{whose} {problem}")
        self.name = name
        self.problem = problem
        self.agent = agent


REFUSALS = (KernelInputError, KernelOverflowError, KernelParameterError)


def check_finite(tensor: torch.Tensor, index: int = 0) -> None:
    """Refuse a tensor with NaN or infinity in it.

    Raises:
        KernelInputError: with ``index`` and the first such value.
    """
    for piece in torch.split(tensor.detach().reshape(-1), CPU_ROOM // tensor.itemsize):
        # Only a sum that is not finite makes the search worth it.
        if not torch.isfinite(piece.sum(dtype=torch.float64)):
            broken = ~torch.isfinite(piece)
            if broken.any():
                raise KernelInputError(index, f"holds {float(piece[broken][0])}")


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``tensor`` in another dtype: to the nearest value, and to the even one of two as near.

    torch takes float64 to the dtypes below float32 by way of float32, which rounds twice:
    1 + 2⁻⁸ + 2⁻³⁰ would become 1 in bfloat16. Elsewhere this is ``tensor.to(dtype)``.

    Args:
        tensor: float, any shape, borrowed.
        dtype: float.

    Returns:
        The tensor itself if it is of that dtype already. Too large values become infinite.
    """
    if tensor.dtype == torch.float64 and dtype.itemsize < torch.float32.itemsize:
        tensor = _to_odd_float32(tensor)
    return tensor.to(dtype)


def _to_odd_float32(tensor: torch.Tensor) -> torch.Tensor:
    """float64 as float32, where the odd one of the two neighbours stands for all between them.

    float32 has more than two bits beyond any narrower dtype, so that rounding an odd neighbour
    is rounding what it stands for (Boldo and Melquiond, "Emulation of FMA and correctly-rounded
    sums: proved algorithms using rounding to odd", 2008).
    """
    nearest = tensor.to(torch.float32)
    bits = nearest.view(torch.int32)
    back = nearest.to(torch.float64)
    is_even_neighbour = (back != tensor) & ((bits & 1) == 0)
    # One step of the bit pattern is one step away from zero, whatever the sign.
    step = 1 - 2 * (back.abs() > tensor.abs()).to(torch.int32)
    return (bits + step * is_even_neighbour).view(torch.float32)


def store(result: torch.Tensor, target: torch.Tensor) -> None:
    """Round results into a tensor of their shape.

    Raises:
        KernelOverflowError: a result is infinite, NaN or too large for the target's dtype.
    """
    target.copy_(rounded(result, target.dtype))
    low, high = (float(bound) for bound in torch.aminmax(result))
    size = max(-low, high)
    # NaN fails these comparisons too.
    if not size < math.inf:
        raise KernelOverflowError(f"the merged values overflow {result.dtype}")
    largest = torch.finfo(target.dtype).max
    if not size <= largest and not torch.isfinite(target).all():
        raise KernelOverflowError(
            f"a merged value of size {size:.6g} does not fit {target.dtype}, "
            f"whose largest is {largest:.6g}"
        )


class Inputs:
    """Equally shaped tensors: the base's, and the agents'.

    ``input_dtype`` is what they are rounded to, by default what all promote to; ``compute_dtype``
    what is then computed in: float64 where that is the input dtype, else float32. As the compiled
    loops take them they are of ``loop_dtype``: bfloat16 where all are, else the compute dtype.

    Raises:
        KernelInputError: one is of another shape than the first, or no float.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None):
        for index, tensor in enumerate(tensors):
            # Broadcasting would make some unequal shapes a merge of something else.
            if tensor.shape != tensors[0].shape:
                raise KernelInputError(
                    index, f"has shape {list(tensor.shape)}, the base {list(tensors[0].shape)}"
                )
            if not tensor.is_floating_point():
                raise KernelInputError(index, f"is of {tensor.dtype}, which is no floating point")
        # Detached, since a parameter that records gradients refuses to be written over.
        self.tensors = [tensor.detach() for tensor in tensors]
        self._flat = [t.view(-1) if t.is_contiguous() else t for t in self.tensors]
        self.device = tensors[0].device
        self.numel = tensors[0].numel()
        found = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        self.input_dtype = dtype or found
        is_double = self.input_dtype == torch.float64
        self.compute_dtype = torch.float64 if is_double else torch.float32
        is_bfloat16 = {self.input_dtype, *(tensor.dtype for tensor in tensors)} == {torch.bfloat16}
        self.loop_dtype = torch.bfloat16 if is_bfloat16 else self.compute_dtype

    def room(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for blocks of at most this length."""
        return torch.empty(len(self.tensors) * length, dtype=dtype, device=self.device)

    def load(self, place: slice, room: torch.Tensor) -> torch.Tensor:
        """The elements of all inputs at a place, in the memory's dtype, ``[inputs, length]``."""
        block = room[: len(self.tensors) * (place.stop - place.start)].view(len(self.tensors), -1)
        for row, tensor in zip(block, self._flat, strict=True):
            part = _part(tensor, place)
            row.copy_(part if part.dtype == self.input_dtype else rounded(part, self.input_dtype))
        return block

    def check_finite(self, place: slice) -> None:
        """Refuse NaN and infinity at a place of the inputs, rounded to the input dtype too.

        Raises:
            KernelInputError: with the index of the first input that holds it.
        """
        for index, tensor in enumerate(self._flat):
            part = _part(tensor, place)
            check_finite(part, index)
            if not torch.isfinite(rounded(part, self.input_dtype)).all():
                raise KernelInputError(index, f"holds values that do not fit {self.input_dtype}")


def _part(tensor: torch.Tensor, place: slice) -> torch.Tensor:
    if tensor.ndim == 1:
        return tensor[place]
    # Flattening a strided tensor copies it: flatten the rows that are wanted.
    row = tensor.numel() // len(tensor)
    first, last = place.start // row, -(-place.stop // row)
    return tensor[first:last].reshape(-1)[place.start - first * row : place.stop - first * row]


def walk(
    inputs: Inputs,
    work: Callable[[torch.Tensor, slice], T],
    size: int | None = None,
    dtype: torch.dtype | None = None,
) -> list[T]:
    """Call ``work`` with every block and its place in the flat tensors.

    Args:
        inputs: to walk over.
        work: called in several threads on a CPU. The block is its own until it returns.
        size: elements of one input in a block.
        dtype: of the blocks; by default that which is computed in.

    Returns:
        What the calls returned, in the order of the blocks.

    Raises:
        KernelInputError, KernelOverflowError: of the first block that is refused, however many
            threads there are.
    """
    dtype = dtype or inputs.compute_dtype
    size = size or _block_size(inputs, dtype)
    starts = range(0, inputs.numel, size)
    workers = _workers(inputs)
    # Both are each thread's own settings.
    in_inference = torch.is_inference_mode_enabled()
    results: dict[int, T] = {}
    refusals: dict[int, ValueError] = {}

    def run(first: int) -> None:
        with torch.inference_mode(in_inference), torch.no_grad():
            room = inputs.room(min(size, inputs.numel), dtype)
            for start in starts[first::workers]:
                place = slice(start, min(start + size, inputs.numel))
                try:
                    results[start] = work(inputs.load(place, room), place)
                except REFUSALS as error:
                    refusals[start] = error
                    return

    # The number of threads is that of the process, and concerns no other device.
    alone = one_thread() if inputs.device.type == "cpu" else nullcontext()
    with alone, ThreadPoolExecutor(workers) as pool:
        others = pool.map(run, range(1, workers))
        run(0)
        list(others)
    if refusals:
        raise refusals[min(refusals)]
    return [results[start] for start in starts]


def _block_size(inputs: Inputs, dtype: torch.dtype) -> int:
    if inputs.device.type != "cpu":
        return ACCELERATOR_BLOCK
    return max(1, CPU_ROOM // (len(inputs.tensors) * dtype.itemsize))


def _workers(inputs: Inputs) -> int:
    """How many threads: torch's at most.

    With w threads that start one after the other, a tensor takes numel / w + THREAD_START · w,
    which is least at w = √(numel / THREAD_START).
    """
    if inputs.device.type != "cpu":
        return 1
    return max(1, min(torch.get_num_threads(), math.isqrt(inputs.numel // THREAD_START)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep operations of torch in the calling thread.

    Otherwise all threads are woken for each, and where another process is busy these wait for one
    another a hundred times longer than the operation takes.
    """
    with _COUNTING:
        # A thread that first asks torch while another one is in here is told 1.
        before = max(torch.get_num_threads(), *_BEFORE, 1)
        _BEFORE.append(before)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _COUNTING:
            _BEFORE.remove(before)
            torch.set_num_threads(before)
