"""One tensor of the models, as far as it is looked at, and the parameters that hold for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from mergekit.common import dtype_from_name
from mergekit.merge_methods.base import TensorEntry
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.directions import default_layout
from mergekit_ram.inspection.sampling import Drawn
from mergekit_ram.kernels import direction_sums
from mergekit_ram.kernels.direction_sums import DirectionSums
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.models.transformers_layout import Sides
from mergekit_ram.tensors import agents_at_work, base_of, check_values, named_errors, recipe_of


@dataclass(frozen=True)
class Directions:
    """How ``ram_directions`` would merge a model."""

    ridge: float
    layouts: Sides


@dataclass(frozen=True)
class DrawnTensor:
    """What is looked at of one tensor."""

    merge: ExecuteMergeMethodTask
    numel: int
    """Of the whole tensor."""
    drawn: Drawn
    settings: dict[str, Any]
    dtype: torch.dtype | None

    @property
    def nbytes(self) -> int:
        return sum(entry.tensor.nbytes for entry in self.drawn.group.entries)

    @cached_property
    def agents(self) -> list[TensorEntry]:
        """Those at work, whose values are fit to be reckoned with."""
        group = self.drawn.group
        agents = agents_at_work(group, self.settings)
        check_values(group, agents)
        return agents

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The base's, and those of the agents at work."""
        return [base_of(self.drawn.group).tensor, *(agent.tensor for agent in self.agents)]

    @property
    def seen(self) -> int:
        """Elements of every model that are looked at."""
        return self.drawn.group.entries[0].tensor.numel()

    def is_like(self, other: DrawnTensor) -> bool:
        """Whether the same agents are at work on it, in the same dtypes."""
        return self._likeness == other._likeness

    @cached_property
    def _likeness(self) -> tuple[object, ...]:
        ids = tuple(agent.id for agent in self.agents)
        return ids, tuple((tensor.dtype, tensor.device) for tensor in self.tensors)

    def recipe(self, settings: Mapping[str, Any], out_dtype: Any = None) -> Recipe:
        """What a merge by these settings does to it."""
        with self.named_errors():
            return recipe_of(settings, self.agents, self.dtype, dtype_from_name(out_dtype))

    def named_errors(self) -> AbstractContextManager[None]:
        """Give the kernels' errors the names of model and tensor."""
        group = self.drawn.group
        return named_errors(group, [base_of(group), *self.agents])

    def measured(self, directions: Directions) -> DirectionSums:
        """What ``ram_directions`` would keep of the whole tensor."""
        settings, agents = self.settings, self.agents
        name = self.merge.output_weight.name
        base, *tensors = self.tensors
        with self.named_errors():
            return direction_sums.measure(
                base,
                tensors,
                epsilon=settings["epsilon"],
                ridge=directions.ridge,
                weight=settings["weight"].values_for(agents) if agents else (),
                scale=settings["scale"],
                layout=directions.layouts.find(name) or default_layout(name, base.shape),
                dtype=self.dtype,
            )
