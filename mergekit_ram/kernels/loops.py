"""The table of RAM and RAM+, and the sums of an inspection, compiled by numba for the CPU.

:mod:`.plain` does the same in torch operations, which is the place to read the formulas. Both take
every operation in the same order and round it on its own, so merged bytes and counts are equal. A
block holds the inputs as they are stored, and goes through in strips that stay in the L1 cache:
see :mod:`.strips`. Importing this needs numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mergekit_ram.kernels.recipe import Numbers
from mergekit_ram.kernels.strips import (
    STRIP,
    Array,
    add_up,
    compiled,
    count,
    mark,
    narrowed,
    number,
    plus,
    read,
    select,
    share,
)


@compiled
def take(
    stored: Array, base: Array, numbers: Numbers, t: int, active: Array, lone: Array, total: Array
) -> None:
    """Mark an agent, and add what it has alone and w τ where it is active.

    Adding −0 changes no number, so that the sum from −0 on is the value of the only active agent,
    bit for bit.
    """
    kind, factor, weight = base.dtype.type, numbers.factor[t], numbers.weight[t]
    idle, nothing, unchanged, is_whole = kind(numbers.epsilon), kind(0), kind(-0.0), factor == 1
    for i in range(len(base)):
        value = number(stored[i])
        delta = value - base[i]
        is_idle = abs(delta) <= idle
        own = value if is_whole else delta * factor + base[i]
        active[i] = select(is_idle, np.uint8(0), np.uint8(1))
        lone[i] += select(is_idle, unchanged, own)
        total[i] += select(is_idle, nothing, delta * weight)


@compiled
def choose(base: Array, lone: Array, total: Array, overlap: Array, out: Array) -> Any:
    """Write a strip, and return a sum that is finite only if all is, before and after rounding.

    Rounding to bfloat16 makes infinity of a number that is too large, and a zero of some NaN.
    """
    written = base.dtype.type(0)
    for i in range(len(base)):
        alone = select(overlap[i] == np.uint8(1), lone[i], base[i])
        value = select(overlap[i] >= np.uint8(2), total[i] + base[i], alone)
        out[i] = narrowed(value, out)
        written = plus(plus(written, value), number(out[i]))
    return written


@compiled
def run(block: Array, numbers: Numbers, out: Array, degree: Array) -> float:
    """Merge a block, and count it: see :func:`mergekit_ram.kernels.plain.run`.

    Returns a sum that is finite only if all inputs are, and all that is written.
    """
    agents, kind, found = len(block) - 1, numbers.factor.dtype, 0.0
    strips, overlap = np.empty((3, STRIP), kind), np.empty(STRIP, np.uint8)
    active = np.zeros((agents, STRIP), np.uint8)
    for start in range(0, block.shape[1], STRIP):
        stop = min(start + STRIP, block.shape[1])
        base, lone, total = (
            strips[0][: stop - start],
            strips[1][: stop - start],
            strips[2][: stop - start],
        )
        read(block[0][start:stop], base)
        lone[:], total[:] = -0.0, 0
        if stop - start < STRIP:
            active[:] = 0
        for t in range(agents):
            stored, own = block[t + 1][start:stop], active[t][: stop - start]
            if len(out) > 0:
                take(stored, base, numbers, t, own, lone, total)
            else:
                found += mark(stored, base, numbers.epsilon, own)
        add_up(active, overlap)
        count(active, overlap, degree)
        if len(out) > 0:
            share(total, overlap, numbers)
            found += choose(base, lone, total, overlap, out[start:stop])
    return found


@compiled
def spread(
    stored: Array, base: Array, numbers: Numbers, t: int, overlap: Array, delta: Array, rows: Array
) -> Any:
    """τ, 0 where |τ| ≤ ε; adds it to the rows where it is unique, times w, and not cut at ε.

    Returns Σ τ, not cut at ε.
    """
    kind, weight, size = base.dtype.type, numbers.weight[t], len(base)
    idle, nothing, moved = kind(numbers.epsilon), kind(0), kind(0)
    unique, together, mean = rows[0][:size], rows[1][:size], rows[2][:size]
    for i in range(size):
        step = number(stored[i]) - base[i]
        own = select(abs(step) <= idle, nothing, step)
        delta[i] = own
        unique[i] += select(overlap[i] == np.uint8(1), own, nothing)
        together[i] += own * weight
        mean[i] += step
        moved = plus(moved, step)
    return moved


@compiled
def product(a: Array, b: Array) -> float:
    """Σ a b, in float64."""
    total = 0.0
    for i in range(len(a)):
        total = plus(total, np.float64(a[i]) * np.float64(b[i]))
    return total


@compiled
def add_pair(a: Array, b: Array, sums: Array) -> None:
    """Add sums over what both changed: see :data:`.energies.PAIRS`."""
    both, agreement, dot, square, nothing = 0, 0, 0.0, 0.0, a.dtype.type(0)
    for i in range(len(a)):
        has_both = (a[i] != nothing) & (b[i] != nothing)
        one, two = np.float64(a[i]), np.float64(b[i])
        both += select(has_both, 1, 0)
        agreement += select(has_both, select((one > 0) == (two > 0), 1, -1), 0)
        dot = plus(dot, one * two)
        square = plus(square, select(has_both, one * one, 0.0))
    sums[0] += both
    sums[1] += dot
    sums[2] += square
    sums[3] += agreement


@compiled
def observe(
    block: Array,
    edges: Array,
    epsilons: Array,
    numbers: Numbers,
    degree: Array,
    energies: Array,
    pairs: Array,
) -> float:
    """Add a block's sums: see :func:`mergekit_ram.kernels.plain.observe`, and :func:`run`."""
    agents, kind, found = len(block) - 1, numbers.factor.dtype, 0.0
    deltas, strips = np.empty((agents, STRIP), kind), np.empty((4, STRIP), kind)
    active, overlap = np.zeros((agents, STRIP), np.uint8), np.empty(STRIP, np.uint8)
    for piece in range(len(degree)):
        for start in range(edges[piece], edges[piece + 1], STRIP):
            stop = min(start + STRIP, edges[piece + 1])
            size = stop - start
            rows, base = strips[:3], strips[3][:size]
            read(block[0][start:stop], base)
            active[:], rows[:] = 0, 0
            for e in range(len(epsilons) - 1, -1, -1):  # the merge's own ε comes last
                for t in range(agents):
                    mark(block[t + 1][start:stop], base, epsilons[e], active[t][:size])
                add_up(active, overlap)
                count(active, overlap, degree[piece, e])
            for t in range(agents):
                delta = deltas[t][:size]
                found += spread(block[t + 1][start:stop], base, numbers, t, overlap, delta, rows)
            share(rows[1][:size], overlap, numbers)
            rows[2] /= kind.type(agents)
            for a in range(agents):
                delta = deltas[a][:size]
                energies[piece, 0, a] += product(delta, delta)
                for row in range(3):
                    energies[piece, row + 1, a] += product(delta, rows[row][:size])
                for b in range(agents):
                    if a != b:
                        add_pair(delta, deltas[b][:size], pairs[piece, :, a, b])
    return found


@compiled
def add_realised(
    stored: Array, base: Array, is_own: Array, outputs: Array, start: int, sums: Array
) -> None:
    changed, kept = 0, 0.0
    ours, plain = outputs[0][start : start + len(base)], outputs[1][start : start + len(base)]
    for i in range(len(base)):
        out, step = number(ours[i]), np.float64(number(stored[i]) - base[i])
        is_changed = (out != number(plain[i])) & (is_own[i] == np.uint8(1))
        changed += select(is_changed, 1, 0)
        own = select(is_own[i] == np.uint8(1), step, 0.0)
        kept = plus(kept, (np.float64(out) - np.float64(base[i])) * own)
    sums[0] += kept
    sums[1] += changed


@compiled
def compare(block: Array, edges: Array, numbers: Numbers, outputs: Array, sums: Array) -> float:
    """Add a block's sums: see :func:`mergekit_ram.kernels.plain.compare`, and :func:`run`."""
    agents, kind, found = len(block) - 1, numbers.factor.dtype, 0.0
    bases, overlap = np.empty(STRIP, kind), np.empty(STRIP, np.uint8)
    active = np.zeros((agents, STRIP), np.uint8)
    for piece in range(len(sums)):
        for start in range(edges[piece], edges[piece + 1], STRIP):
            stop = min(start + STRIP, edges[piece + 1])
            base = bases[: stop - start]
            read(block[0][start:stop], base)
            active[:] = 0
            for t in range(agents):
                own = active[t][: stop - start]
                found += mark(block[t + 1][start:stop], base, numbers.epsilon, own)
            add_up(active, overlap)
            for t in range(agents):
                active[t] *= overlap == 1
                add_realised(
                    block[t + 1][start:stop], base, active[t], outputs, start, sums[piece, :, t]
                )
    return found
