"""What a record says of single tensors: objects to read, and columns to write.

A model of experts has tens of thousands of tensors. A column names its field once for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

Interval = tuple[float, float]
Intervals = dict[str, Interval | None]
Setting = float | tuple[float, ...]
"""A number that holds for all tensors, or the different ones in ascending order."""

Value = TypeVar("Value")


class Frozen(BaseModel):
    """A part of a record."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorAgent(Frozen):
    """What one agent changed in one tensor."""

    model: str
    weight: float
    active: int
    shared: int
    unique: int
    overlap_degree: tuple[int, ...]
    rescale: float


class TensorRecord(Frozen):
    """One tensor of the output, as often as it is written."""

    name: str
    numel: int
    epsilon: float
    change: float = Field(description="share of its parameters that some agent changed")
    agents: tuple[TensorAgent, ...]
    loading: str = Field(description="digest of what is loaded for it, and how")
    interval: Intervals | None = None


Numbers = float | tuple[float | None, ...]
"""One number for all tensors, or one for each; null where the agent lacks the tensor."""


class AgentColumns(Frozen):
    """What one agent changed in every tensor."""

    model: str
    weight: Numbers = Field(description="w; a number for all tensors, or a list by tensor")
    rescale: Numbers = Field(description="λ; a number for all tensors, or a list by tensor")
    overlap_degree: tuple[tuple[int | None, ...], ...] = Field(
        description="by number of other agents, from 0, then by tensor: active parameters that so "
        "many others changed too; null where the tensor has fewer agents, or not this one"
    )


class TensorColumns(Frozen):
    """Every tensor of the output: lists by tensor, all in one order."""

    name: tuple[str, ...]
    numel: tuple[int, ...]
    epsilon: float | tuple[float, ...] = Field(description="a number for all, or a list by tensor")
    change: tuple[float, ...] = Field(description="share of parameters that some agent changed")
    loading: tuple[str, ...] = Field(description="digest of what is loaded, and how")
    interval: tuple[Intervals | None, ...] | None = Field(
        default=None, description="of a sample: as in an agent's record"
    )
    agents: tuple[AgentColumns, ...]

    @classmethod
    def of(cls, tensors: Sequence[TensorRecord]) -> TensorColumns:
        """The columns of some tensors."""
        intervals = tuple(tensor.interval for tensor in tensors)
        names = dict.fromkeys(agent.model for tensor in tensors for agent in tensor.agents)
        by_tensor = [{agent.model: agent for agent in tensor.agents} for tensor in tensors]
        return cls.model_construct(
            name=tuple(tensor.name for tensor in tensors),
            numel=tuple(tensor.numel for tensor in tensors),
            epsilon=_short(tensor.epsilon for tensor in tensors),
            change=tuple(tensor.change for tensor in tensors),
            loading=tuple(tensor.loading for tensor in tensors),
            interval=intervals if any(intervals) else None,
            agents=tuple(
                _agent_columns(name, [row.get(name) for row in by_tensor]) for name in names
            ),
        )

    def records(self) -> tuple[TensorRecord, ...]:
        """The same as objects.

        Raises:
            ValueError: columns of different lengths.
        """
        size = len(self.name)
        agents = [_agent_rows(agent, size) for agent in self.agents]
        return tuple(
            TensorRecord.model_construct(
                name=name,
                numel=numel,
                epsilon=epsilon,
                change=change,
                agents=tuple(agent for agent in row if agent is not None),
                loading=loading,
                interval=interval,
            )
            for name, numel, epsilon, change, loading, interval, row in zip(
                self.name,
                _long("numel", self.numel, size),
                _long("epsilon", self.epsilon, size),
                _long("change", self.change, size),
                _long("loading", self.loading, size),
                _long("interval", self.interval, size),
                zip(*agents, strict=True) if agents else [()] * size,
                strict=True,
            )
        )


def tensors_of(value: Any) -> Any:
    """Tensor records from JSON, in columns or one object each; anything else is left as it is.

    Raises:
        ValueError: columns that do not fit together, or what is no tensor.
    """
    try:
        if isinstance(value, dict):
            return TensorColumns.model_validate_json(json.dumps(value), strict=True).records()
        if isinstance(value, list) and not any(isinstance(one, TensorRecord) for one in value):
            return _OBJECTS.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return value


_OBJECTS: TypeAdapter[tuple[TensorRecord, ...]] = TypeAdapter(tuple[TensorRecord, ...])


def _short(values: Iterable[Value]) -> Value | tuple[Value, ...]:
    """One value if all are the same."""
    found = tuple(values)
    return found[0] if found and found.count(found[0]) == len(found) else found


def _long(name: str, column: Any, size: int) -> Sequence[Any]:
    if not isinstance(column, tuple):
        return (column,) * size
    if len(column) != size:
        raise ValueError(f"{name}: {len(column)} values for {size} tensors")
    return column


def _agent_columns(model: str, found: Sequence[TensorAgent | None]) -> AgentColumns:
    depth = max(len(agent.overlap_degree) for agent in found if agent is not None)
    return AgentColumns.model_construct(
        model=model,
        weight=_short(None if agent is None else agent.weight for agent in found),
        rescale=_short(None if agent is None else agent.rescale for agent in found),
        overlap_degree=tuple(
            tuple(
                agent.overlap_degree[others]
                if agent is not None and others < len(agent.overlap_degree)
                else None
                for agent in found
            )
            for others in range(depth)
        ),
    )


def _agent_rows(columns: AgentColumns, size: int) -> Iterator[TensorAgent | None]:
    place = f"agents: {columns.model}"
    weights = _long(f"{place}: weight", columns.weight, size)
    factors = _long(f"{place}: rescale", columns.rescale, size)
    degrees = [_long(f"{place}: overlap_degree", one, size) for one in columns.overlap_degree]
    rows = zip(*degrees, strict=True) if degrees else [()] * size
    for weight, factor, row in zip(weights, factors, rows, strict=True):
        degree = tuple(count for count in row if count is not None)
        if weight is None or factor is None:
            if degree or weight is not factor:
                raise ValueError(f"{place}: null in one column and a number in another")
            yield None
            continue
        if row[: len(degree)] != degree:
            raise ValueError(f"{place}: overlap_degree: null before a number")
        yield TensorAgent.model_construct(
            model=columns.model,
            weight=weight,
            active=sum(degree),
            shared=sum(degree[1:]),
            unique=degree[0] if degree else 0,
            overlap_degree=degree,
            rescale=factor,
        )
