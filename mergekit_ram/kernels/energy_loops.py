"""The loops of :mod:`mergekit_ram.kernels.energies`; importing this module needs numba.

As in :mod:`.loops`, whose conventions hold here too, every loop does one thing to a strip that
stays in the L1 cache. Sums are taken in float64 in an order that is fixed when a loop is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mergekit_ram.kernels.machine import compiled, load_strip, tally
from mergekit_ram.kernels.strips import STRIP

Array = npt.NDArray[Any]
T = TypeVar("T")


def _summing(function: Callable[..., T]) -> Callable[..., T]:
    """A sum whose terms may be taken in another order, so that vector instructions do it."""
    return compiled(function, fastmath={"reassoc"})


@_summing
def _product(a: Array, b: Array, length: int) -> float:
    """Σ a b, float64."""
    total = 0.0
    for i in range(length):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@_summing
def _square_where(a: Array, b: Array, length: int) -> float:
    """Σ a² where b is not 0, float64."""
    total = 0.0
    for i in range(length):
        own = a[i] if b[i] != 0 else a.dtype.type(0)
        total += np.float64(own) * np.float64(own)
    return total


@compiled
def _count_strip(
    values: Array, length: int, epsilon: Any, pattern_bits: int, cell: Array, histograms: Array
) -> None:
    """Tally which deltas ``values[1:]`` of one strip are active."""
    for group in range(len(histograms)):
        for i in range(length):
            cell[i] = 0
        for t in range(len(values) - 1):
            delta = values[t + 1]
            code = 1 << pattern_bits
            if t // pattern_bits == group:
                code += 1 << (t % pattern_bits)
            add = np.int32(code)
            for i in range(length):
                cell[i] += add if abs(delta[i]) > epsilon else np.int32(0)
        tally(cell, length, histograms[group])


@compiled
def observe_block(
    addresses: Array,
    like: Array,
    size: int,
    shift: int,
    values: Array,
    bits: Array,
    edges: Array,
    epsilons: Array,
    finite: Any,
    weight: Array,
    divisor: Array,
    scale: Any,
    pattern_bits: int,
    histograms: Array,
    energies: Array,
    pairs: Array,
) -> bool:
    """Take all sums of one chunk but those that need λ.

    Args:
        addresses, like, size, shift, values, bits, finite, pattern_bits: as in
            :func:`mergekit_ram.kernels.loops.count_block`.
        edges: int64 ``[pieces + 1]``, where the pieces begin, and where the last one ends.
        epsilons: to count at, of ``values``' dtype; the first one is the merge's.
        weight: w_t per agent, of that dtype, as what follows.
        divisor: |T|^p by |T|.
        scale: s.
        histograms: int64 ``[pieces, epsilons, groups, LANES, cells]``.
        energies: float64 ``[pieces, 4, agents]``, energies to add to.
        pairs: float64 ``[pieces, 4, agents, agents]``, sums of pairs to add to.

    Returns:
        Whether every difference is finite.
    """
    cell = np.empty(STRIP, np.int32)
    overlap = np.empty(STRIP, np.int32)
    mean = np.empty(STRIP, values.dtype)
    share = np.empty(STRIP, values.dtype)
    is_finite = True
    for piece in range(len(edges) - 1):
        for start in range(edges[piece], edges[piece + 1], STRIP):
            length = min(STRIP, edges[piece + 1] - start)
            load_strip(addresses, like, size, start, length, shift, bits, True)
            is_finite &= _subtract(values, length, finite, mean)
            for e in range(len(epsilons)):
                _count_strip(values, length, epsilons[e], pattern_bits, cell, histograms[piece, e])
            _keep_active(values, length, epsilons[0], overlap)
            _share(values, length, overlap, weight, divisor, scale, share)
            _add_energies(values, length, overlap, share, mean, energies[piece])
            _add_pairs(values, length, pairs[piece])
    return is_finite


@compiled
def compare_block(
    addresses: Array,
    like: Array,
    size: int,
    shift: int,
    values: Array,
    bits: Array,
    edges: Array,
    epsilon: Any,
    outputs: Array,
    like_output: Array,
    _: int,
    output_shift: int,
    output_values: Array,
    output_bits: Array,
    sums: Array,
) -> None:
    """Take the sums of one chunk that tell what rounding left of λ.

    Args:
        addresses, like, size, shift, values, bits, edges: as in :func:`observe_block`.
        epsilon: ε, of ``values``' dtype.
        outputs, like_output, output_shift, output_values, output_bits: the like of the inputs'
            for two outputs, the merged values as rounded, and what they are with every λ at 1.
        sums: float64 ``[pieces, 2, agents]`` to add to.
    """
    overlap = np.empty(STRIP, np.int32)
    differs = np.empty(STRIP, np.int32)
    step = np.empty(STRIP, np.float64)
    mean = np.empty(STRIP, values.dtype)
    for piece in range(len(edges) - 1):
        for start in range(edges[piece], edges[piece + 1], STRIP):
            length = min(STRIP, edges[piece + 1] - start)
            load_strip(addresses, like, size, start, length, shift, bits, True)
            load_strip(outputs, like_output, size, start, length, output_shift, output_bits, True)
            out, same = output_values
            for i in range(length):
                step[i] = np.float64(out[i]) - np.float64(values[0, i])
            for i in range(length):
                differs[i] = np.int32(1) if out[i] != same[i] else np.int32(0)
            _subtract(values, length, np.inf, mean)
            _keep_active(values, length, epsilon, overlap)
            for t in range(len(values) - 1):
                delta = values[t + 1]
                changed = np.int32(0)
                for i in range(length):
                    delta[i] = delta[i] if overlap[i] == 1 else values.dtype.type(0)
                for i in range(length):
                    changed += differs[i] if delta[i] != 0 else np.int32(0)
                sums[piece, 0, t] += _product(delta, step, length)
                sums[piece, 1, t] += changed


@compiled
def _subtract(values: Array, length: int, finite: Any, mean: Array) -> bool:
    """Make task vectors of ``values[1:]``, and their mean; tell whether they are finite."""
    base = values[0]
    agents = values.dtype.type(len(values) - 1)
    broken = 0
    for i in range(length):
        mean[i] = 0
    for t in range(1, len(values)):
        delta = values[t]
        for i in range(length):
            delta[i] -= base[i]
            mean[i] += delta[i]
        for i in range(length):
            broken += 0 if abs(delta[i]) <= finite else 1
    for i in range(length):
        mean[i] = mean[i] / agents
    return broken == 0


@compiled
def _keep_active(values: Array, length: int, epsilon: Any, overlap: Array) -> None:
    """Set task vectors to 0 where they are not active, and count the active ones."""
    zero = values.dtype.type(0)
    for i in range(length):
        overlap[i] = 0
    for t in range(1, len(values)):
        delta = values[t]
        for i in range(length):
            delta[i] = delta[i] if abs(delta[i]) > epsilon else zero
        for i in range(length):
            overlap[i] += np.int32(1) if delta[i] != 0 else np.int32(0)


@compiled
def _share(
    values: Array,
    length: int,
    overlap: Array,
    weight: Array,
    divisor: Array,
    scale: Any,
    share: Array,
) -> None:
    """What the merge adds to the base's shared parameters; 0 elsewhere."""
    for i in range(length):
        share[i] = 0
    for t in range(len(weight)):
        delta, w = values[t + 1], weight[t]
        for i in range(length):
            share[i] += delta[i] * w
    for i in range(length):
        share[i] = share[i] / divisor[overlap[i]] * scale
    for i in range(length):
        share[i] = share[i] if overlap[i] >= 2 else values.dtype.type(0)


@compiled
def _add_energies(
    values: Array, length: int, overlap: Array, share: Array, mean: Array, energies: Array
) -> None:
    alone = np.empty(STRIP, values.dtype)
    for t in range(energies.shape[1]):
        delta = values[t + 1]
        for i in range(length):
            alone[i] = delta[i] if overlap[i] == 1 else values.dtype.type(0)
        energies[0, t] += _product(delta, delta, length)
        energies[1, t] += _product(alone, alone, length)
        energies[2, t] += _product(delta, share, length)
        energies[3, t] += _product(delta, mean, length)


@compiled
def _add_pairs(values: Array, length: int, pairs: Array) -> None:
    agents = pairs.shape[1]
    for a in range(agents):
        for b in range(a + 1, agents):
            one, two = values[a + 1], values[b + 1]
            both = _count_both(one, two, length)
            product = _product(one, two, length)
            agreement = both - 2 * _count_against(one, two, length)
            for row, column in ((a, b), (b, a)):
                pairs[0, row, column] += both
                pairs[1, row, column] += product
                pairs[3, row, column] += agreement
            pairs[2, a, b] += _square_where(one, two, length)
            pairs[2, b, a] += _square_where(two, one, length)


@compiled
def _count_both(a: Array, b: Array, length: int) -> int:
    """How often neither is 0."""
    both = np.int32(0)
    for i in range(length):
        both += np.int32(1) if (a[i] != 0) & (b[i] != 0) else np.int32(0)
    return int(both)


@compiled
def _count_against(a: Array, b: Array, length: int) -> int:
    """How often one is above and the other below 0."""
    against = np.int32(0)
    for i in range(length):
        is_up, is_down = (a[i] > 0) & (b[i] < 0), (a[i] < 0) & (b[i] > 0)
        against += np.int32(1) if is_up | is_down else np.int32(0)
    return int(against)
