"""Puts the scripts of ``examples/agents`` on the path, as the benchmark itself does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import benchmarks.agents  # noqa: F401


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slow with several threads where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
