"""One tensor's chunks, shared out among threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from mergekit_ram.kernels.chunks import Chunk, Chunks, KernelInputError, KernelOverflowError

MAX_WORKERS = 4
"""Threads of one tensor's chunks. They meet at no barrier before the tensor is done, but share
Python's lock between two compiled loops, so that more of them gain little."""

CHUNKS_PER_WORKER = 4
"""Fewer are not worth a thread."""

T = TypeVar("T")


def workers_for(chunks: Chunks) -> int:
    """How many threads pay."""
    most = min(MAX_WORKERS, torch.get_num_threads())
    return max(1, min(most, len(chunks) // CHUNKS_PER_WORKER))


def shared_out(work: Callable[[int, int], T], workers: int) -> list[T]:
    """Call ``work(first, step)`` in that many threads; together they see every chunk.

    Raises:
        KernelInputError, KernelOverflowError: of the first chunk of the tensor that
            :func:`at` caught one in, however many threads looked for it.
    """

    def run(first: int) -> T | _Refused:
        try:
            # Whether gradients are recorded is each thread's own setting.
            with torch.no_grad():
                return work(first, workers)
        except _Refused as refused:
            return refused

    if workers == 1:
        results = [run(0)]
    else:
        with ThreadPoolExecutor(workers) as pool:
            results = list(pool.map(run, range(workers)))
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
