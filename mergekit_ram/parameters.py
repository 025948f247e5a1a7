"""Merge parameters that are finite numbers in a range, checked as mergekit reads them."""

from __future__ import annotations

from typing import Annotated, Any

from mergekit.merge_methods.base import ParameterScope, ParameterSpec
from pydantic import Field, ValidationError

from mergekit_ram.errors import ParameterError
from mergekit_ram.overlap import DEFAULT_ALPHA, DEFAULT_R

Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
UnitInterval = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class NumberParameter(ParameterSpec):
    """A parameter whose refusal names itself, the value, and what it should have been."""

    def validate(self, value: Any) -> Any:
        """Return the number.

        Raises:
            ParameterError: text, a truth value, NaN, infinity, or a number out of range.
        """
        try:
            if isinstance(value, bool):
                raise TypeError("a truth value is no number")
            return super().validate(value)
        except (ValidationError, TypeError):
            raise ParameterError(
                f"parameter '{self.name}' must be {self.description}; got {value!r}"
            ) from None


class PathParameter(ParameterSpec):
    """A file's path, or nothing."""

    def validate(self, value: Any) -> str | None:
        """Return the path.

        Raises:
            ParameterError: anything but text.
        """
        if value is None or (isinstance(value, str) and value):
            return value
        raise ParameterError(f"parameter '{self.name}' must be {self.description}; got {value!r}")


def _parameter(
    name: str, kind: Any, default: float | None, description: str, per_agent: bool = False
) -> NumberParameter:
    scope = ParameterScope.NON_BASE if per_agent else ParameterScope.SHARED
    return NumberParameter(name, kind, scope, default=default, description=description)


EPSILON = _parameter("epsilon", NotNegative, 1e-5, "a finite number ≥ 0")
SCALE = _parameter("scale", NotNegative, 1.0, "a finite number ≥ 0")
WEIGHT = _parameter("weight", Finite, 1.0, "a finite number", per_agent=True)
RIDGE = _parameter("ridge", Positive, 0.3, "a finite number > 0")
OVERLAP_POWER = _parameter("overlap_power", UnitInterval, 1.0, "a finite number from 0 to 1")
R = _parameter("r", NotNegative, DEFAULT_R, "a finite number ≥ 0")
ALPHA = _parameter("alpha", NotNegative, DEFAULT_ALPHA, "a finite number ≥ 0")
RESCALE = _parameter(
    "rescale",
    NotNegative | None,
    None,
    "a finite number ≥ 0, or left out to be computed",
    per_agent=True,
)
STATISTICS = PathParameter(
    "statistics",
    str | None,
    ParameterScope.SHARED,
    default=None,
    description="the path of a ram_overlap.json, or left out to count",
)
