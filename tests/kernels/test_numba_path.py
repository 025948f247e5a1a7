"""The compiled loops are an extra: used where numba is, never needed, never loaded early."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from mergekit_ram.kernels import numba_path
from mergekit_ram.kernels.count_and_merge import count, merge


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "mergekit_ram.kernels.loops", raising=False)
    numba_path._loops.cache_clear()
    yield
    numba_path._loops.cache_clear()


def test_without_numba_torch_does_the_work(no_numba):
    assert not numba_path.available()
    base, agent = torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])
    assert torch.equal(merge(base, [agent], epsilon=1e-5), agent)
    assert count(base, [agent], epsilon=1e-5).overlap_degree == ((2,),)


def test_the_environment_switches_the_compiled_loops_off(monkeypatch):
    monkeypatch.setenv(numba_path.DISABLE_VARIABLE, "0")
    assert not numba_path.available()


def test_importing_the_kernels_loads_no_numba():
    code = "import sys, mergekit_ram.kernels.count_and_merge; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
