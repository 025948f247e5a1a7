"""The parameters of one merge, checked, and the numbers that its arithmetic takes from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mergekit_ram.kernels.blocks import KernelParameterError

Array = npt.NDArray[np.floating]


class Numbers(NamedTuple):
    """What the arithmetic takes; every number is one of the dtype that is computed in."""

    epsilon: float
    factor: Array
    """``[N]`` s λ_t w_t."""
    weight: Array
    """``[N]`` w_t."""
    divisor: Array
    """``[N + 1]`` |T|^p by |T|; an untouched parameter divides by one."""
    scale: float


@dataclass(frozen=True)
class Recipe:
    """The parameters of a merge, as :func:`mergekit_ram.kernels.ram.merge` explains them."""

    epsilon: float
    rescale: tuple[float, ...]
    weight: tuple[float, ...]
    scale: float
    overlap_power: float
    dtype: torch.dtype | None = None
    out_dtype: torch.dtype | None = None
    chunk_size: int | None = None

    @classmethod
    def of(
        cls,
        agent_count: int,
        epsilon: float,
        rescale: Sequence[float] | None,
        weight: Sequence[float] | None,
        scale: float,
        overlap_power: float,
        *,
        dtype: torch.dtype | None = None,
        out_dtype: torch.dtype | None = None,
        chunk_size: int | None = None,
    ) -> Recipe:
        """A recipe of checked numbers.

        Raises:
            KernelParameterError: a number is NaN, infinite or none at all, ε is negative,
                ``rescale`` or ``weight`` has not one number per agent, or ``chunk_size`` is no
                positive whole number.
        """
        if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size >= 1):
            problem = f"must be a whole number ≥ 1; got {chunk_size}"
            raise KernelParameterError("chunk_size", problem)
        return cls(
            checked_epsilon(epsilon),
            _per_agent("rescale", rescale, agent_count),
            _per_agent("weight", weight, agent_count),
            _finite("scale", scale),
            _finite("overlap_power", overlap_power),
            dtype,
            out_dtype,
            chunk_size,
        )

    def numbers(self, dtype: torch.dtype) -> Numbers:
        """The numbers of a merge that is computed in float32 or float64.

        A factor that rounds to 1 is 1, and its agent's lone values stay whole.

        Raises:
            KernelParameterError: the dtype cannot hold a number, or a product or power of them.
        """
        kind = _kind(dtype)
        scale = rounded_number("scale", self.scale, dtype)
        for agent, λ in enumerate(self.rescale):
            rounded_number("rescale", λ, dtype, agent)
        weight = [rounded_number("weight", w, dtype, agent) for agent, w in enumerate(self.weight)]
        # One by one: powers of a vector may differ in the last digit by their place in it.
        divisor = [_power(max(1, n), self.overlap_power) for n in range(len(weight) + 1)]
        if not all(0 < number <= np.finfo(kind).max for number in divisor[1:]):
            raise KernelParameterError(
                "overlap_power",
                f"is {self.overlap_power:g}, so that |T|^p is beyond {kind.__name__}",
            )
        factor = [
            rounded_number("scale times rescale times weight", self.scale * λ * w, dtype, agent)
            for agent, (λ, w) in enumerate(zip(self.rescale, self.weight, strict=True))
        ]
        epsilon = rounded_number("epsilon", self.epsilon, dtype)
        return Numbers(
            epsilon, np.array(factor, kind), np.array(weight, kind), np.array(divisor, kind), scale
        )


def checked_epsilon(epsilon: float) -> float:
    """ε as a float.

    Raises:
        KernelParameterError: it is negative, NaN, infinite or no number.
    """
    value = _number(epsilon)
    if not 0 <= value < math.inf:
        raise KernelParameterError("epsilon", f"must be a finite number ≥ 0; got {epsilon}")
    return value


def rounded_number(name: str, value: float, dtype: torch.dtype, agent: int | None = None) -> float:
    """The number of that dtype that is nearest to a parameter's value.

    Raises:
        KernelParameterError: the value lies beyond the dtype's largest number.
    """
    kind = _kind(dtype)
    largest = float(np.finfo(kind).max)
    if not abs(value) <= largest:
        raise KernelParameterError(
            name,
            f"is {value:g}, beyond {kind.__name__}, whose largest number is {largest:.6g}",
            agent,
        )
    return float(kind(value))


def _kind(dtype: torch.dtype) -> type[np.floating]:
    return np.float64 if dtype == torch.float64 else np.float32


def _per_agent(name: str, values: Sequence[float] | None, agent_count: int) -> tuple[float, ...]:
    if values is None:
        return (1.0,) * agent_count
    if len(values) != agent_count:
        raise KernelParameterError(name, f"has {len(values)} numbers for {agent_count} agents")
    return tuple(_finite(name, value, agent) for agent, value in enumerate(values))


def _finite(name: str, value: float, agent: int | None = None) -> float:
    number = _number(value)
    if not math.isfinite(number):
        raise KernelParameterError(name, f"must be a finite number; got {value}", agent)
    return number


def _number(value: float) -> float:
    """NaN stands for what is no number."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:
        return math.inf


def _power(base: int, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf
