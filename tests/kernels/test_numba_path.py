"""numba never ends a merge: whatever ails it, torch goes on, with one line and the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from reference import same_bits

from mergekit_ram.kernels import energies, ram
from mergekit_ram.kernels.blocks import KernelInputError
from mergekit_ram.kernels.ram import count, merge, merge_and_count
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.text import one_line, visible

FALLBACK = "merging on the CPU in torch, which takes many times as long"


class Odd(BaseException):
    """Of a class that nobody would think of."""


FAILURES = [
    RuntimeError("cannot cache"),
    OSError(28, "No space left on device"),
    EOFError("Ran out of input"),
    IndexError("list index out of range"),
    KeyError("index"),
    ImportError("llvmlite"),
    Odd("\x1b[31mred\nand a second line"),
]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of numba yet, before and after."""
    ram._loops.cache_clear()
    yield
    ram._loops.cache_clear()


@pytest.fixture
def no_numba(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "mergekit_ram.kernels.loops", raising=False)


def inputs(numel: int = 400_000) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(numel, generator=generator)
    step = torch.randn(3, numel, generator=generator)
    touched = torch.rand(3, numel, generator=generator) < 0.4
    return base, [base + delta * mask for delta, mask in zip(step, touched, strict=True)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "mergekit_ram"]


def test_without_numba_torch_does_the_work_and_one_line_says_why(no_numba, caplog):
    assert not ram.available()
    base, agent = torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])
    for _ in range(2):
        assert torch.equal(merge(base, [agent], epsilon=1e-5), agent)
        assert count(base, [agent], epsilon=1e-5).overlap_degree == ((2,),)
    (line,) = warnings(caplog)
    assert line.startswith(FALLBACK)
    assert "numba cannot be imported (import of numba halted; " in line
    assert ram.why_not() in line


def test_the_environment_switches_the_compiled_loops_off_without_a_warning(monkeypatch, caplog):
    monkeypatch.setenv(ram.DISABLE_VARIABLE, "0")
    assert not ram.available()
    assert ram.why_not() == "switched off (MERGEKIT_RAM_NATIVE=0)"
    assert warnings(caplog) == []


def test_nothing_is_wrong_where_numba_works(fresh, caplog):
    assert ram.why_not() is None
    assert warnings(caplog) == []


def test_importing_the_kernels_loads_no_numba():
    code = "import sys, mergekit_ram.kernels.ram; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("calls_that_work", [0, 3])
def test_a_failure_at_any_call_is_made_good_from_the_start_of_the_tensor(
    error, calls_that_work, fresh, monkeypatch, caplog
):
    base, agents = inputs()
    recipe = Recipe.of(3, 1e-5, [1.2, 1.1, 1.0], None, 1.0, 1.0, chunk_size=10_000)
    expected = merge_and_count(recipe, base, agents)
    counts = count(base, agents, epsilon=1e-5)
    loop, calls = ram._loops().module.run, iter(range(1000))

    def broken(*arguments):
        if next(calls) >= calls_that_work:
            raise error
        return loop(*arguments)

    monkeypatch.setattr(ram._loops().module, "run", broken)
    merged = merge_and_count(recipe, base, agents)
    assert same_bits(merged.tensor, expected.tensor)
    assert merged.counts == expected.counts
    assert count(base, agents, epsilon=1e-5) == counts
    (line,) = warnings(caplog)
    assert f"numba failed ({visible(one_line(error))})" in line
    assert line.isprintable()
    assert not ram.available()


def test_inspecting_goes_on_in_torch_too(fresh, monkeypatch, caplog):
    base, agents = inputs(50_000)
    recipe = Recipe.of(3, 1e-5, None, None, 1.0, 1.0)
    expected = energies.observe(recipe, base, agents)

    def broken(*_):
        raise Odd

    monkeypatch.setattr(ram._loops().module, "observe", broken)
    seen = energies.observe(recipe, base, agents)
    assert (seen.degree == expected.degree).all()
    assert "numba failed (Odd);" in warnings(caplog)[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_failure_of_numba_is_passed_on(error, fresh, monkeypatch):
    def interrupted(*_):
        raise error

    ram.available()
    monkeypatch.setattr(ram._loops().module, "run", interrupted)
    with pytest.raises(error):
        merge(torch.zeros(3), [torch.ones(3)], epsilon=1e-5)
    assert ram.available()


def test_a_refusal_is_no_failure_of_numba(fresh, caplog):
    with pytest.raises(KernelInputError, match="holds nan"):
        merge(torch.zeros(3), [torch.tensor([1.0, float("nan"), 1.0])], epsilon=1e-5)
    assert ram.available()
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("value", "is_off"), [("0", True), ("false", True), (" off ", True), ("1", False), ("", False)]
)
def test_the_switch_is_read_like_the_others(monkeypatch, value, is_off):
    monkeypatch.setenv(ram.DISABLE_VARIABLE, value)
    assert ram.available() is not is_off
    assert (ram.why_not() or "").startswith("switched off") is is_off


def test_threads_that_fail_together_say_so_once(fresh, monkeypatch, caplog):
    base, agents = inputs(20_000)
    together = threading.Barrier(4)

    def broken(*_):
        together.wait()
        raise RuntimeError("no cache")

    ram.available()
    monkeypatch.setattr(ram._loops().module, "run", broken)
    found = []
    workers = [
        threading.Thread(target=lambda: found.append(count(base, agents, epsilon=1e-5)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(warnings(caplog)) == 1


MERGE = """
import logging, sys
logging.basicConfig(level=logging.WARNING)
import torch
from mergekit_ram.kernels.ram import count, merge
generator = torch.Generator().manual_seed(0)
base, agent = (torch.randn(3000, generator=generator).bfloat16() for _ in range(2))
merged = merge(base, [agent], epsilon=0.5)
active = (agent.double() - base.double()).abs() > 0.5
assert torch.equal(merged, torch.where(active, agent, base))
assert count(base, [agent], epsilon=0.5).overlap_degree == ((int(active.sum()),),)
"""


def merging(cache: Path, **environment: str) -> str:
    """What a process that merges says; it has to end well."""
    result = subprocess.run(
        [sys.executable, "-c", MERGE],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    assert merging(cache) == ""
    return cache


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".nbi", lambda content: b""),
        (".nbi", lambda content: content[: len(content) // 2]),
        (".nbc", lambda content: b""),
        (".nbc", lambda content: content[:-1]),
    ],
    ids=["empty index", "cut index", "empty code", "code cut by one"],
)
def test_a_damaged_cache_costs_one_line(suffix, damage, filled_cache, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(filled_cache, cache)
    damaged = [file for file in cache.rglob("*") if file.suffix == suffix]
    assert damaged
    for file in damaged:
        file.write_bytes(damage(file.read_bytes()))
    (line,) = merging(cache).splitlines()
    assert FALLBACK in line
    assert "numba" in line


def test_compilation_switched_off_costs_one_line(tmp_path):
    (line,) = merging(tmp_path, NUMBA_DISABLE_JIT="1").splitlines()
    assert "compilation is switched off (NUMBA_DISABLE_JIT)" in line


@pytest.mark.parametrize(
    "module",
    ["", "import llvmlite_of_another_machine"],
    ids=["empty", "library missing"],
)
def test_a_broken_numba_costs_one_line(module, tmp_path):
    (tmp_path / "numba.py").write_text(module)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    (line,) = merging(tmp_path, PYTHONPATH=path).splitlines()
    assert "numba cannot be imported (" in line


def test_a_cache_that_cannot_be_written_costs_one_line_at_most(tmp_path):
    cache = tmp_path / "cache"
    cache.write_text("a file where a folder should be")
    assert len(merging(cache).splitlines()) <= 1
    assert len(merging(Path("/dev/full/cache")).splitlines()) <= 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("out_dtype", [None, torch.float16])
def test_inference_mode_merges_as_without(threads, dtype, out_dtype):
    base, agents = inputs()
    base, agents = base.to(dtype), [agent.to(dtype) for agent in agents]
    settings = {"epsilon": 1e-5, "rescale": [1.2, 1.1, 1.0], "out_dtype": out_dtype}
    expected = merge(base, agents, **settings)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            merged = merge(base.clone(), [agent.clone() for agent in agents], **settings)
            counts = count(base, agents, epsilon=1e-5)
    finally:
        torch.set_num_threads(before)
    assert same_bits(merged, expected)
    assert counts == count(base, agents, epsilon=1e-5)


def test_another_default_device_changes_nothing():
    base, agents = inputs(1000)
    expected = merge(base, agents, epsilon=1e-5, overlap_power=0.5)
    with torch.device("meta"):
        merged = merge(base, agents, epsilon=1e-5, overlap_power=0.5)
        counts = count(base, agents, epsilon=1e-5)
    assert same_bits(merged, expected)
    assert counts == count(base, agents, epsilon=1e-5)
