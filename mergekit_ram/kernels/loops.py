"""The table of RAM and RAM+, and the sums of an inspection, compiled by numba for the CPU.

:mod:`.plain` does the same in torch operations, which is the place to read the formulas. Both take
every operation in the same order and round it on its own, so merged bytes and counts are equal. A
block goes through in strips that stay in the L1 cache. A loop that selects instead of branching and
does one thing becomes vector instructions: hence functions of one loop. Importing this needs numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import intrinsic

Array = npt.NDArray[Any]
T = TypeVar("T")

STRIP = 1024
"""Elements that are computed with at once."""

PATTERN_BITS = 8
"""Agents whose activity one histogram tells apart; more agents have several histograms."""

LANES = 4
"""Histograms that are filled in turns: no increment waits for the one before it."""


def compiled(function: Callable[..., T], **more: Any) -> Callable[..., T]:
    """Machine code, made when a dtype is first met and kept for the next process."""
    # numpy's error model: a division by zero gives infinity instead of leaving the loop.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **more}
    try:
        made: Callable[..., T] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in
        made = numba.njit(**options)(function)
    return made


def summing(function: Callable[..., T]) -> Callable[..., T]:
    """The same for a sum whose terms may be taken in another order, as vector instructions do."""
    return compiled(function, fastmath={"reassoc"})


@intrinsic
def select(context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """``yes if condition else no`` without a branch."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return yes(types.boolean, yes, yes), generate


@compiled
def subtract(value: Array, base: Array, epsilon: float, delta: Array) -> None:
    """τ, 0 where |τ| ≤ ε."""
    idle, nothing = delta.dtype.type(epsilon), delta.dtype.type(0)
    for i in range(len(delta)):
        step = value[i] - base[i]
        delta[i] = select(abs(step) <= idle, nothing, step)


@compiled
def mark(delta: Array, bit: int, marks: Array) -> None:
    """Add ``bit`` where an agent is active."""
    nothing, own, none = delta.dtype.type(0), np.int32(bit), np.int32(0)
    for i in range(len(delta)):
        marks[i] = np.int32(marks[i] + select(delta[i] != nothing, own, none))


@compiled
def look(
    block: Array, start: int, stop: int, epsilon: float, deltas: Array, overlap: Array
) -> None:
    """Every τ_t of a strip, 0 where not active, and |T_i|."""
    overlap[:] = 0
    for t in range(len(deltas)):
        delta = deltas[t][: stop - start]
        subtract(block[t + 1][start:stop], block[0][start:stop], epsilon, delta)
        mark(delta, 1, overlap)


@compiled
def histograms(thresholds: int, agents: int) -> Array:
    """Per threshold one for PATTERN_BITS agents; the cell of a parameter is its overlap count times
    2^PATTERN_BITS, plus a bit for every active agent."""
    groups = -(-agents // PATTERN_BITS)
    return np.zeros((thresholds, groups, LANES, (agents + 1) << PATTERN_BITS), np.int32)


@compiled
def count(deltas: Array, overlap: Array, cells: Array) -> None:
    """Add a strip to the histograms."""
    cell = np.empty(len(overlap), np.uint32)
    marks = cell.view(np.int32)
    for group in range(len(cells)):
        for i in range(len(cell)):
            marks[i] = overlap[i] << PATTERN_BITS
        first = group * PATTERN_BITS
        for t in range(first, min(first + PATTERN_BITS, len(deltas))):
            mark(deltas[t][: len(cell)], 1 << (t - first), marks)
        for i in range(len(cell)):
            cells[group, i % LANES, cell[i]] += 1


@compiled
def add_degrees(cells: Array, degree: Array) -> None:
    """Add what the histograms hold to ``degree[t, k]``, the parameters of agent t that k other
    agents changed too."""
    for group in range(len(cells)):
        for cell in range(1 << PATTERN_BITS, cells.shape[2]):
            found = 0
            for lane in range(LANES):
                found += cells[group, lane, cell]
            if found > 0:
                for bit in range(PATTERN_BITS):
                    if (cell >> bit) & 1:
                        others = (cell >> PATTERN_BITS) - 1
                        degree[group * PATTERN_BITS + bit, others] += found


@compiled
def add_whole(delta: Array, value: Array, lone: Array) -> None:
    """Add an agent's values where it is active. Adding −0 changes no number, so that the sum from
    −0 on is the value of the only active agent, bit for bit."""
    nothing, unchanged = delta.dtype.type(0), delta.dtype.type(-0.0)
    for i in range(len(delta)):
        lone[i] += select(delta[i] != nothing, value[i], unchanged)


@compiled
def add_scaled(delta: Array, base: Array, factor: float, lone: Array) -> None:
    nothing, unchanged = delta.dtype.type(0), delta.dtype.type(-0.0)
    for i in range(len(delta)):
        lone[i] += select(delta[i] != nothing, delta[i] * factor + base[i], unchanged)


@compiled
def add(delta: Array, weight: float, total: Array) -> None:
    for i in range(len(delta)):
        total[i] += delta[i] * weight


@compiled
def share(total: Array, overlap: Array, divisor: Array, is_mean: bool, scale: float) -> None:
    """s Σ w_t τ_t / |T_i|^p, in place."""
    factor = total.dtype.type(scale)
    if is_mean:  # converting is faster than looking up
        for i in range(len(total)):
            total[i] = total[i] / total.dtype.type(overlap[i]) * factor
    else:
        for i in range(len(total)):
            total[i] = total[i] / divisor[overlap[i]] * factor


@compiled
def choose(base: Array, lone: Array, total: Array, overlap: Array, out: Array) -> None:
    one, two = np.int32(1), np.int32(2)
    for i in range(len(base)):
        alone = select(overlap[i] == one, lone[i], base[i])
        out[i] = select(overlap[i] >= two, total[i] + base[i], alone)


@compiled
def run(
    block: Array,
    epsilon: float,
    factor: Array,
    weight: Array,
    divisor: Array,
    scale: float,
    out: Array,
    degree: Array,
) -> None:
    """Merge a block, and count it: see :func:`mergekit_ram.kernels.plain.run`."""
    agents, kind = len(block) - 1, block.dtype
    every, overlaps = np.empty((agents, STRIP), kind), np.empty(STRIP, np.int32)
    lones, totals = np.empty(STRIP, kind), np.empty(STRIP, kind)
    cells, is_mean = histograms(1, len(degree))[0], np.all(divisor[1:] == np.arange(1, agents + 1))
    for start in range(0, block.shape[1], STRIP):
        stop = min(start + STRIP, block.shape[1])
        base, overlap = block[0][start:stop], overlaps[: stop - start]
        look(block, start, stop, epsilon, every, overlap)
        count(every, overlap, cells)
        if len(out) > 0:
            lone, total = lones[: stop - start], totals[: stop - start]
            lone[:] = -0.0
            total[:] = 0
            for t in range(agents):
                delta = every[t][: stop - start]
                if factor[t] == 1:
                    add_whole(delta, block[t + 1][start:stop], lone)
                else:
                    add_scaled(delta, base, factor[t], lone)
                add(delta, weight[t], total)
            share(total, overlap, divisor, is_mean, scale)
            choose(base, lone, total, overlap, out[start:stop])
    add_degrees(cells, degree)


@compiled
def keep(values: Array, overlap: Array, fewest: int, most: int) -> None:
    """Set values to 0 where |T_i| lies elsewhere."""
    low, high, nothing = np.int32(fewest), np.int32(most), values.dtype.type(0)
    for i in range(len(values)):
        values[i] = select((overlap[i] >= low) & (overlap[i] <= high), values[i], nothing)


@summing
def product(a: Array, b: Array) -> float:
    """Σ a b, in float64."""
    total = 0.0
    for i in range(len(a)):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@summing
def square_where(a: Array, b: Array) -> float:
    """Σ a² where b is not 0, in float64."""
    total, nothing = 0.0, a.dtype.type(0)
    for i in range(len(a)):
        own = np.float64(select(b[i] != nothing, a[i], nothing))
        total += own * own
    return total


@compiled
def signs(a: Array, b: Array, is_same: int, is_other: int) -> int:
    """Where neither is 0: ``is_same`` as often as they are on one side of it, and else
    ``is_other``."""
    found, nothing, none = np.int32(0), a.dtype.type(0), np.int32(0)
    same, other = np.int32(is_same), np.int32(is_other)
    for i in range(len(a)):
        value = select((a[i] > nothing) == (b[i] > nothing), same, other)
        has_both = (a[i] != nothing) & (b[i] != nothing)
        found = np.int32(found + select(has_both, value, none))
    return int(found)


@compiled
def observe(
    block: Array,
    epsilons: Array,
    weight: Array,
    divisor: Array,
    scale: float,
    degree: Array,
    energies: Array,
    pairs: Array,
) -> None:
    """Add a block's sums: see :func:`mergekit_ram.kernels.plain.observe`."""
    agents, kind = len(block) - 1, block.dtype
    every, overlaps = np.empty((agents, STRIP), kind), np.empty(STRIP, np.int32)
    rows, raws, whole = np.empty((3, STRIP), kind), np.empty(STRIP, kind), kind.type(1)
    cells, is_mean = (
        histograms(len(epsilons), agents),
        np.all(divisor[1:] == np.arange(1, agents + 1)),
    )
    for start in range(0, block.shape[1], STRIP):
        stop = min(start + STRIP, block.shape[1])
        base, overlap, raw = block[0][start:stop], overlaps[: stop - start], raws[: stop - start]
        for e in range(len(epsilons) - 1, -1, -1):  # the merge's own ε comes last
            look(block, start, stop, epsilons[e], every, overlap)
            count(every, overlap, cells[e])
        rows[:] = 0
        alone, shared, mean = rows[0][: len(raw)], rows[1][: len(raw)], rows[2][: len(raw)]
        for t in range(agents):
            delta = every[t][: len(raw)]
            add(delta, whole, alone)
            add(delta, weight[t], shared)
            subtract(block[t + 1][start:stop], base, -1.0, raw)
            add(raw, whole, mean)
        share(shared, overlap, divisor, is_mean, scale)
        keep(alone, overlap, 1, 1)
        keep(shared, overlap, 2, agents)
        mean /= kind.type(agents)
        for a in range(agents):
            one = every[a][: len(raw)]
            energies[0, a] += product(one, one)
            for row in range(3):
                energies[row + 1, a] += product(one, rows[row][: len(raw)])
            for b in range(agents):
                if a != b:
                    two = every[b][: len(raw)]
                    pairs[0, a, b] += signs(one, two, 1, 1)
                    pairs[1, a, b] += product(one, two)
                    pairs[2, a, b] += square_where(one, two)
                    pairs[3, a, b] += signs(one, two, 1, -1)
    for e in range(len(epsilons)):
        add_degrees(cells[e], degree[e])


@compiled
def compare(block: Array, epsilon: float, outputs: Array, sums: Array) -> None:
    """Add a block's sums: see :func:`mergekit_ram.kernels.plain.compare`."""
    agents, kind = len(block) - 1, block.dtype
    every, overlaps = np.empty((agents, STRIP), kind), np.empty(STRIP, np.int32)
    steps, others = np.empty(STRIP, np.float64), np.empty(STRIP, kind)
    for start in range(0, block.shape[1], STRIP):
        stop = min(start + STRIP, block.shape[1])
        base, overlap = block[0][start:stop], overlaps[: stop - start]
        out, plain = outputs[0][start:stop], outputs[1][start:stop]
        step, differs = steps[: stop - start], others[: stop - start]
        look(block, start, stop, epsilon, every, overlap)
        for i in range(len(step)):
            step[i] = np.float64(out[i]) - np.float64(base[i])
            differs[i] = np.float64(out[i] != plain[i])
        keep(step, overlap, 1, 1)
        keep(differs, overlap, 1, 1)
        for t in range(agents):
            delta = every[t][: stop - start]
            sums[0, t] += product(delta, step)
            sums[1, t] += signs(delta, differs, 1, 1)
