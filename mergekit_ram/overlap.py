"""From counts to densities, ρ_t and λ_t. Knows neither tensors nor mergekit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from itertools import zip_longest
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, computed_field, model_validator

DEFAULT_R = 0.1
DEFAULT_ALPHA = 2.0
"""The paper's r and α."""

LARGE_RESCALE = 2.0
"""λ above which an agent's unique updates are more than doubled."""

LARGE_RESCALE_ADVICE = (
    "the unique updates are exaggerated, where the paper's λ is 1.2 at most. Take a smaller r or "
    "alpha (the defaults are 0.1 and 2), or a smaller rescale."
)

SUSPICIOUS_DENSITY = 0.95
"""Share of changed parameters above which an agent is hardly a sparse one of this base."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of parameters."""

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Field(fail_fast=True)]
"""A list that stops being read at its first error."""


class AgentCounts(BaseModel, frozen=True):
    """What one agent changed in one tensor.

    ``overlap_degree[k]`` counts its active parameters that ``k`` other agents changed too.
    """

    model: str = Field(description="the agent, as the configuration names it")
    overlap_degree: Items[Count] = Field(
        description="active parameters by the number of other agents that changed them, from 0"
    )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def active(self) -> int:
        """Parameters with |τ_t| > ε."""
        return sum(self.overlap_degree)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def unique(self) -> int:
        """Active parameters that no other agent changed."""
        return self.overlap_degree[0] if self.overlap_degree else 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def shared(self) -> int:
        """Active parameters that at least one other agent changed too."""
        return self.active - self.unique


class WholeCounts(AgentCounts, frozen=True):
    """What one agent changed in the whole model."""

    parameters: Count = Field(description="parameters of the model")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def density(self) -> float:
        """Share of the model's parameters that the agent changed, 0 to 1."""
        return self.active / self.parameters if self.parameters else 0.0

    @property
    def finite_ratio(self) -> float | None:
        """ρ_t = shared / unique, with None in place of infinity."""
        if self.unique:
            return self.shared / self.unique
        return None if self.shared else 0.0


class AgentOverlap(WholeCounts, frozen=True):
    """Counts of an agent with ρ_t as a number, and λ_t."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def overlap_unique_ratio(self) -> float:
        """ρ_t = shared / unique; infinite (``null`` in JSON) without unique parameters,
        0 without any active one."""
        ratio = self.finite_ratio
        return math.inf if ratio is None else ratio

    def rescale(self, r: float, alpha: float) -> float:
        """λ_t = 1 + r · clip(ρ_t, 0, α)."""
        return 1.0 + r * min(self.overlap_unique_ratio, alpha)


class TensorOverlap(BaseModel, frozen=True):
    """The counts of one tensor of the output, as often as it is written."""

    name: str
    numel: Count
    agents: Items[AgentCounts]

    @property
    def changed(self) -> int:
        """Parameters that at least one agent changed."""
        # A parameter that k + 1 agents changed is counted once by each of them.
        changed = sum(
            degree // (others + 1)
            for others, degree in enumerate(_total(agent.overlap_degree for agent in self.agents))
        )
        # Estimates of a sample are rounded one by one.
        return min(changed, self.numel)

    @model_validator(mode="after")
    def _agents_are_distinct(self) -> TensorOverlap:
        names = [agent.model for agent in self.agents]
        if len(set(names)) != len(names):
            raise ValueError(f"tensor {self.name} has two agents of one name: {names}")
        return self


class OverlapStatistics(BaseModel, frozen=True):
    """The whole-model counts that λ_t is computed from.

    ``model_dump_json`` writes everything, sums included; ``model_validate_json`` reads it back.
    """

    tensors: tuple[TensorOverlap, ...]

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def parameters(self) -> int:
        """Number of parameters counted."""
        return sum(tensor.numel for tensor in self.tensors)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def agents(self) -> tuple[AgentOverlap, ...]:
        """Every agent with its counts summed over all tensors, in order of appearance."""
        degrees: dict[str, list[tuple[int, ...]]] = {}
        for tensor in self.tensors:
            for agent in tensor.agents:
                degrees.setdefault(agent.model, []).append(agent.overlap_degree)
        return tuple(
            AgentOverlap(model=model, overlap_degree=_total(found), parameters=self.parameters)
            for model, found in degrees.items()
        )

    def agent(self, model: str) -> AgentOverlap:
        """The agent of that name.

        Raises:
            KeyError: no tensor of this agent was counted; the message lists those that were.
        """
        found = self._agents_by_model.get(model)
        if found is None:
            raise KeyError(f"{model} was not counted; counted were {list(self._agents_by_model)}")
        return found

    @cached_property
    def _agents_by_model(self) -> dict[str, AgentOverlap]:
        return {agent.model: agent for agent in self.agents}


def _total(degrees: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Overlap degrees added up; where fewer agents hold a tensor they are shorter."""
    return tuple(sum(column) for column in zip_longest(*degrees, fillvalue=0))
