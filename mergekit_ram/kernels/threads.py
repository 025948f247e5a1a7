"""One tensor's chunks, shared out among threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from mergekit_ram.kernels.chunks import Chunk, KernelInputError, KernelOverflowError

START = 262_144
"""Elements that the loops merge in the time that a thread takes to start and to get ready, some
350 µs, most of it Python's."""

T = TypeVar("T")


def workers_for(numel: int) -> int:
    """How many threads a tensor of that size gets: torch's at most.

    The loops share nothing but memory. With w threads that start one after the other, a tensor
    takes numel / w + START · w, which is least at w = √(numel / START): the caller's alone below
    1,048,576 parameters, 2 from there on, 16 from 67 million, all of 64 from 1.1 billion.
    """
    return max(1, min(torch.get_num_threads(), math.isqrt(numel // START)))


def shared_out(work: Callable[[int, int], T], workers: int) -> list[T]:
    """Call ``work(first, step)`` in that many threads, of which the caller's is one.

    Together they see every chunk.

    Raises:
        KernelInputError, KernelOverflowError: of the first chunk of the tensor that
            :func:`at` caught one in, however many threads looked for it.
    """
    # Both are each thread's own settings.
    in_inference = torch.is_inference_mode_enabled()

    def run(first: int) -> T | _Refused:
        try:
            with torch.inference_mode(in_inference), torch.no_grad():
                return work(first, workers)
        except _Refused as refused:
            return refused

    if workers == 1:
        results = [run(0)]
    else:
        with ThreadPoolExecutor(workers - 1) as pool:
            others = [pool.submit(run, first) for first in range(1, workers)]
            results = [run(0), *(other.result() for other in others)]
    refusals = [result for result in results if isinstance(result, _Refused)]
    if refusals:
        raise min(refusals, key=lambda refused: refused.start).error
    return [result for result in results if not isinstance(result, _Refused)]


@contextmanager
def at(chunk: Chunk) -> Iterator[None]:
    """Within it, an error is one of this chunk."""
    try:
        yield
    except (KernelInputError, KernelOverflowError) as error:
        raise _Refused(chunk.start, error) from None


class _Refused(Exception):
    """An error of one chunk, on its way out of a thread."""

    def __init__(self, start: int, error: ValueError):
        super().__init__(start)
        self.start = start
        self.error = error


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep short operations of torch, or products of a few rows, in the calling thread.

    Otherwise all threads are woken for each, and where another process is busy these wait for one
    another a hundred times longer than the operation takes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
