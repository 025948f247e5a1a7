"""What one merge does to every parameter of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


class KernelParameterError(ValueError):
    """A number that no merge can be reckoned with.

    ``name`` is the parameter's, ``problem`` says the value and what is wrong with it, and
    ``agent`` is the index of the agent whose number it is, if it is one's.
    """

    def __init__(self, name: str, problem: str, agent: int | None = None):
        whose = "" if agent is None else f" of agent {agent}"
        super().__init__(f"{name}{whose} {problem}")
        self.name = name
        self.problem = problem
        self.agent = agent


@dataclass(frozen=True)
class Recipe:
    """The scalars of a merge, and how its numbers are rounded and walked through.

    ``unique_factor[t]`` is s λ_t w_t; the rest is explained where
    :func:`mergekit_ram.kernels.count_and_merge.merge` takes it.
    """

    epsilon: float
    rescale: tuple[float, ...]
    weight: tuple[float, ...]
    unique_factor: tuple[float, ...]
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
            KernelParameterError: a number is NaN, infinite or none at all, ε is negative, or
                ``rescale`` or ``weight`` has not one number per agent.
        """
        λs = _per_agent("rescale", rescale, agent_count)
        weights = _per_agent("weight", weight, agent_count)
        scale = _finite("scale", scale)
        return cls(
            epsilon=checked_epsilon(epsilon),
            rescale=λs,
            weight=weights,
            unique_factor=tuple(scale * λ * w for λ, w in zip(λs, weights, strict=True)),
            scale=scale,
            overlap_power=_finite("overlap_power", overlap_power),
            dtype=dtype,
            out_dtype=out_dtype,
            chunk_size=chunk_size,
        )

    def rounded_to(self, dtype: torch.dtype) -> Recipe:
        """The same in numbers of the dtype that is reckoned in; ``overlap_power`` stays.

        A factor that rounds to 1 is 1 from here on, and its agent's lone values stay whole.

        Raises:
            KernelParameterError: the dtype cannot hold a number, or a product or power of them.
        """
        scale = rounded_number("scale", self.scale, dtype)
        for name in ("rescale", "weight"):
            for agent, value in enumerate(getattr(self, name)):
                rounded_number(name, value, dtype, agent)
        divisors = self.divisors()[1:]
        if not ((divisors > 0) & (divisors <= torch.finfo(dtype).max)).all():
            raise KernelParameterError(
                "overlap_power",
                f"is {self.overlap_power:g}, so that |T|^p is beyond {_plain(dtype)}",
            )
        return replace(
            self,
            epsilon=rounded_number("epsilon", self.epsilon, dtype),
            weight=tuple(rounded_number("weight", w, dtype) for w in self.weight),
            unique_factor=tuple(
                rounded_number("scale times rescale times weight", factor, dtype, agent)
                for agent, factor in enumerate(self.unique_factor)
            ),
            scale=scale,
        )

    def divisors(self) -> torch.Tensor:
        """|T|^p by |T|, float64; an untouched parameter divides by one."""
        # One by one: torch's powers of a vector differ in the last digit by their place in it.
        powers = [
            _power(max(1, count), self.overlap_power) for count in range(len(self.weight) + 1)
        ]
        return torch.tensor(powers, dtype=torch.float64, device="cpu")


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
    largest = torch.finfo(dtype).max
    if not abs(value) <= largest:
        raise KernelParameterError(
            name,
            f"is {value:g}, beyond {_plain(dtype)}, whose largest number is {largest:.6g}",
            agent,
        )
    return torch.tensor(value, dtype=dtype, device="cpu").item()


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


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
