"""The loops of :mod:`mergekit_ram.kernels.numba_path`; importing this module needs numba.

They do what the torch operations of :mod:`.torch_path` do, in the same order and with every
operation rounded on its own, so the bytes are the same; they need one pass in place of dozens,
and no lock of Python's. Inputs come as addresses, so that one compilation serves any number of
agents; how their bit patterns become floats is explained in :mod:`.machine`.

A loop becomes vector instructions where it selects instead of branching, writes few arrays and is
compiled by itself: hence short functions of one loop over a strip that stays in the L1 cache.
"""

from __future__ import annotations

import numpy as np

from mergekit_ram.kernels.machine import (
    QUAD,
    QUAD_BITS,
    Array,
    add_quads,
    compiled,
    load_strip,
    pattern,
    row_of,
    select,
    store_strip,
    tally,
    tally_quads,
)


@compiled
def _clear(a: Array, length: int) -> None:
    for i in range(length):
        a[i] = 0


@compiled
def _copy(source: Array, target: Array, length: int) -> None:
    for i in range(length):
        target[i] = source[i]


@compiled
def _note_sizes(value: Array, length: int, worst: Array) -> None:
    """Keep the largest; patterns of floats ≥ 0 are in their order, and NaN's above all."""
    for i in range(length):
        size = pattern(abs(value[i]))
        worst[i] = select(size > worst[i], size, worst[i])


@compiled
def _add_active(
    value: Array, base: Array, length: int, epsilon: float, code: int, cell: Array
) -> None:
    """Add ``code`` where |τ| > ε, or is NaN."""
    add, nothing = np.int32(code), np.int32(0)
    for i in range(length):
        is_idle = abs(value[i] - base[i]) <= epsilon
        cell[i] = np.int32(cell[i] + select(is_idle, nothing, add))


@compiled
def _add_active_noting(
    value: Array, base: Array, length: int, epsilon: float, code: int, cell: Array, worst: Array
) -> None:
    """The same, and keep the largest |τ|."""
    add, nothing = np.int32(code), np.int32(0)
    for i in range(length):
        step = abs(value[i] - base[i])
        cell[i] = np.int32(cell[i] + select(step <= epsilon, nothing, add))
        worst[i] = select(pattern(step) > worst[i], pattern(step), worst[i])


@compiled
def _take_whole(
    value: Array, base: Array, length: int, epsilon: float, w: float, lone: Array, shared: Array
) -> None:
    nothing = base.dtype.type(0)
    for i in range(length):
        delta = value[i] - base[i]
        is_idle = abs(delta) <= epsilon
        lone[i] = select(is_idle, lone[i], value[i])
        shared[i] = shared[i] + select(is_idle, nothing, delta * w)


@compiled
def _take_scaled(
    value: Array,
    base: Array,
    length: int,
    epsilon: float,
    w: float,
    f: float,
    lone: Array,
    shared: Array,
) -> None:
    nothing = base.dtype.type(0)
    for i in range(length):
        delta = value[i] - base[i]
        is_idle = abs(delta) <= epsilon
        lone[i] = select(is_idle, lone[i], delta * f + base[i])
        shared[i] = shared[i] + select(is_idle, nothing, delta * w)


@compiled
def _share_mean(
    shared: Array, overlap: Array, base: Array, length: int, scale: float, lone: Array
) -> None:
    for i in range(length):
        together = shared[i] / base.dtype.type(overlap[i]) * scale + base[i]
        lone[i] = select(overlap[i] >= 2, together, lone[i])


@compiled
def _share(
    shared: Array,
    overlap: Array,
    base: Array,
    length: int,
    divisor: Array,
    scale: float,
    lone: Array,
) -> None:
    for i in range(length):
        together = shared[i] / divisor[overlap[i]] * scale + base[i]
        lone[i] = select(overlap[i] >= 2, together, lone[i])


@compiled
def _add_overlap(overlap: Array, length: int, pattern_bits: int, cell: Array) -> None:
    for i in range(length):
        cell[i] = np.int32(cell[i] + (overlap[i] << pattern_bits))


@compiled
def _quads(groups: int, pattern_bits: int, size: int) -> Array:
    """Cells to count by four parameters; none where that does not pay."""
    cells = 0
    if groups == 1 and pattern_bits <= QUAD_BITS and size >= 1 << (QUAD * QUAD_BITS):
        cells = 1 << (QUAD * pattern_bits)
    return np.zeros((2, cells), np.int32)


@compiled
def _count_strip(
    cell: Array, length: int, pattern_bits: int, joined: Array, quads: Array, histogram: Array
) -> None:
    if quads.shape[1] > 0:
        tally_quads(cell, length, pattern_bits, joined, quads, histogram)
    else:
        tally(cell, length, histogram)


@compiled
def count_block(
    addresses: Array,
    like: Array,
    size: int,
    shift: int,
    values: Array,
    bits: Array,
    epsilon: float,
    finite: float,
    pattern_bits: int,
    histograms: Array,
) -> bool:
    """Add one chunk to the histograms of active agents.

    Args:
        addresses: of base and agents, bit patterns ``[size]`` each, contiguous.
        like: an array of their dtype.
        size: elements of each.
        shift: that makes floats of them.
        values: scratch, float ``[1 + agents, strip]``; any strip that four divides.
        bits: the same memory as unsigned integers.
        epsilon: ε, of ``values``' dtype.
        finite: the largest finite number of that dtype.
        pattern_bits: agents per histogram.
        histograms: int64 ``[groups, LANES, cells]``; see :mod:`mergekit_ram.kernels.torch_path`.

    Returns:
        Whether every difference is finite.
    """
    agents, groups, strip = len(addresses) - 1, histograms.shape[0], values.shape[1]
    cell = np.empty(strip, np.int32)
    worst = np.zeros(strip, bits.dtype)
    quads, joined = _quads(groups, pattern_bits, size), np.empty(strip // QUAD, np.int32)
    for start in range(0, size, strip):
        length = min(strip, size - start)
        load_strip(addresses, like, size, start, length, shift, bits, False)
        base = row_of(addresses, 0, size, start, length, shift, values)
        for group in range(groups):
            _clear(cell, length)
            for t in range(agents):
                code = 1 << pattern_bits
                if t // pattern_bits == group:
                    code += 1 << (t % pattern_bits)
                value = row_of(addresses, t + 1, size, start, length, shift, values)
                _add_active_noting(value, base, length, epsilon, code, cell, worst)
            _count_strip(cell, length, pattern_bits, joined, quads, histograms[group])
    if quads.shape[1] > 0:
        add_quads(quads, pattern_bits, histograms[0])
    return bool(worst.max() <= pattern(finite))


@compiled
def merge_block(
    addresses: Array,
    like: Array,
    size: int,
    shift: int,
    values: Array,
    bits: Array,
    epsilon: float,
    factor: Array,
    weight: Array,
    divisor: Array,
    is_mean: bool,
    scale: float,
    largest: float,
    pattern_bits: int,
    histograms: Array,
    out_shift: int,
    out: Array,
) -> bool:
    """Merge one chunk, and count it where there are histograms.

    Args:
        addresses, like, size, shift, values, bits, epsilon, pattern_bits, histograms:
            as in :func:`count_block`.
        factor: s λ_t w_t per agent, of ``values``' dtype, as all that follows.
        weight: w_t per agent.
        divisor: |T|^p by |T|.
        is_mean: p is 1, so that the overlap count itself is the divisor.
        scale: s.
        largest: the largest number that needs no second look.
        out_shift: that makes floats of the merged values.
        out: bit patterns of the merged values, ``[size]``.

    Returns:
        Whether every input is finite and every merged value smaller than ``largest``.
    """
    agents, groups, strip = len(addresses) - 1, histograms.shape[0], values.shape[1]
    overlap = np.empty(strip, np.int32)
    cells = np.empty((groups, strip), np.int32)
    shared = np.empty(strip, values.dtype)
    lone = np.empty(strip, values.dtype)
    lone_bits = lone.view(bits.dtype)
    worst = np.zeros(strip, bits.dtype)
    quads, joined = _quads(groups, pattern_bits, size), np.empty(strip // QUAD, np.int32)
    for start in range(0, size, strip):
        length = min(strip, size - start)
        load_strip(addresses, like, size, start, length, shift, bits, False)
        base = row_of(addresses, 0, size, start, length, shift, values)
        _clear(overlap, length)
        _clear(shared, length)
        for group in range(groups):
            _clear(cells[group], length)
        _copy(base, lone, length)
        for t in range(agents):
            value = row_of(addresses, t + 1, size, start, length, shift, values)
            w, f = weight[t], factor[t]
            # NaN counts as active, so that it is found in the result.
            _add_active(value, base, length, epsilon, 1, overlap)
            if t // pattern_bits < groups:
                code = 1 << (t % pattern_bits)
                _add_active(value, base, length, epsilon, code, cells[t // pattern_bits])
            if f == 1:
                _take_whole(value, base, length, epsilon, w, lone, shared)
            else:
                _take_scaled(value, base, length, epsilon, w, f, lone, shared)
        for group in range(groups):
            _add_overlap(overlap, length, pattern_bits, cells[group])
            _count_strip(cells[group], length, pattern_bits, joined, quads, histograms[group])
        if is_mean:
            _share_mean(shared, overlap, base, length, scale, lone)
        else:
            _share(shared, overlap, base, length, divisor, scale, lone)
        _note_sizes(lone, length, worst)
        store_strip(lone_bits, length, out_shift, out[start : start + length])
    if quads.shape[1] > 0:
        add_quads(quads, pattern_bits, histograms[0])
    return bool(worst.max() < pattern(largest))
