"""The merge methods ``ram``, ``ram_plus`` and ``ram_directions``, and their parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

import torch
from mergekit.merge_methods.base import (
    BasePolicy,
    BatchOptions,
    InputContract,
    MergeMethod,
    MergeMethodSpec,
    OptionalTensorPolicy,
    ParameterScope,
    ParameterSpec,
    PerInputValues,
    TensorGroup,
)
from pydantic import Field, ValidationError

from mergekit_ram.errors import InputError, ParameterError, PlanError
from mergekit_ram.overlap import DEFAULT_ALPHA, DEFAULT_R, OverlapStatistics, TensorOverlap
from mergekit_ram.tensors import agent_name, count_group, merge_group

Settings = list[dict[str, Any]]
"""Resolved parameters, by name, of every group."""
Dtypes = Sequence[torch.dtype | None]

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


def _number(
    name: str, kind: Any, default: float | None, description: str, per_agent: bool = False
) -> NumberParameter:
    scope = ParameterScope.NON_BASE if per_agent else ParameterScope.SHARED
    return NumberParameter(name, kind, scope, default=default, description=description)


EPSILON = _number("epsilon", NotNegative, 1e-5, "a finite number ≥ 0")
SCALE = _number("scale", NotNegative, 1.0, "a finite number ≥ 0")
WEIGHT = _number("weight", Finite, 1.0, "a finite number", per_agent=True)
RIDGE = _number("ridge", Positive, 0.3, "a finite number > 0")
OVERLAP_POWER = _number("overlap_power", UnitInterval, 1.0, "a finite number from 0 to 1")
R = _number("r", NotNegative, DEFAULT_R, "a finite number ≥ 0")
ALPHA = _number("alpha", NotNegative, DEFAULT_ALPHA, "a finite number ≥ 0")
RESCALE = _number(
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


def _spec(
    name: str, title: str, *parameters: ParameterSpec, paper: str = "2601.13572"
) -> MergeMethodSpec:
    return MergeMethodSpec(
        name=name,
        parameters=parameters,
        contract=InputContract(base=BasePolicy.REQUIRED, min_non_base=1),
        pretty_name=f"Reinforced Agent Merging {title}",
        reference_url=f"https://arxiv.org/abs/{paper}",
        optional_tensor_policy=OptionalTensorPolicy.PASSTHROUGH_BASE_SINGLETON,
    )


_all_groups_at_hand: ContextVar[bool] = ContextVar("all_groups_at_hand", default=False)


class RamMerge(MergeMethod):
    """Reinforced Agent Merging (RAM): a lone update whole, shared updates averaged.

    Per parameter, with the agents T_i that changed it by more than ε: the base where T_i is
    empty, the agent's value where it has one member, else the base plus the mean of the task
    vectors in T_i. ``scale``, ``weight`` and ``overlap_power`` generalise it; at their
    defaults they leave the paper's formula.

    Called with tensor groups it merges them in memory. Results carry no gradient.
    """

    spec = _spec("ram", "(RAM)", EPSILON, SCALE, WEIGHT, OVERLAP_POWER)

    def validate_inputs(
        self,
        input_ids: Sequence[Hashable],
        base_id: Hashable | None = None,
        *,
        group_name: str | None = None,
    ) -> None:
        """Check that there is a base, at least one agent, and no model twice.

        Raises:
            InputError: the message names the models and the YAML that mends it.
        """
        try:
            super().validate_inputs(input_ids, base_id, group_name=group_name)
        except ValueError as error:
            models = ", ".join(map(str, input_ids)) or "none"
            twice = [str(name) for name, times in Counter(input_ids).items() if times > 1]
            error = ValueError(f"{error}: {', '.join(twice)}") if twice else error
            raise InputError(
                f"{self.spec.name}: {error} (models: {models}; base: {base_id}). "
                "The method needs `base_model:`, the model that all agents were trained from, "
                "and every agent once under `models:`."
            ) from None

    def _execute(
        self,
        groups: Sequence[TensorGroup],
        parameters: Settings,
        options: BatchOptions,
        *,
        input_dtypes: Dtypes,
        out_dtype: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, ...]:
        settings = self._completed(groups, parameters, input_dtypes)
        return tuple(
            merge_group(group, own, dtype=dtype, out_dtype=out_dtype).tensor
            for group, own, dtype in zip(groups, settings, input_dtypes, strict=True)
        )

    def _completed(
        self, groups: Sequence[TensorGroup], parameters: Settings, dtypes: Dtypes
    ) -> Settings:
        """The parameters of every group, with what has to be counted for them."""
        return parameters


class RamPlusMerge(RamMerge):
    """RAM+: RAM with every agent's lone updates scaled by λ_t = 1 + r · clip(ρ_t, 0, α).

    ρ_t = shared_t / unique_t is a number of the whole model. In a merge by the planner a
    counting pass over all planned tensors supplies it; in memory (this method called, or
    ``merge_state_dicts`` and ``merge_tensors``) it is taken over all groups of the call.
    """

    spec = _spec(
        "ram_plus", "Plus (RAM+)", *RamMerge.spec.parameters, R, ALPHA, RESCALE, STATISTICS
    )

    def __call__(
        self, groups: Sequence[TensorGroup], /, **arguments: Any
    ) -> tuple[torch.Tensor, ...]:
        """Merge groups in memory, with λ_t over all of them; see ``MergeMethod.__call__``."""
        token = _all_groups_at_hand.set(True)
        try:
            return super().__call__(groups, **arguments)
        finally:
            _all_groups_at_hand.reset(token)

    def _completed(
        self, groups: Sequence[TensorGroup], parameters: Settings, dtypes: Dtypes
    ) -> Settings:
        if not any(needs_counting(settings) for settings in parameters):
            return parameters
        if not _all_groups_at_hand.get():
            raise _no_statistics(groups)
        if any(settings["statistics"] for settings in parameters):
            raise PlanError(
                "ram_plus: 'statistics' are those of a merge planned from files; in memory "
                "everything is counted. Leave the parameter out."
            )
        counted: dict[Hashable, TensorOverlap] = {}
        for group, settings, dtype in zip(groups, parameters, dtypes, strict=True):
            # A module lists a tied weight under both its names: one weight, counted once.
            memory = tuple((e.id, e.tensor.data_ptr(), e.tensor.shape) for e in group.entries)
            if memory not in counted:
                counted[memory] = count_group(group, settings, dtype=dtype)
        statistics = OverlapStatistics(tensors=tuple(counted.values()))
        return [with_rescale(settings, statistics) for settings in parameters]


class RamDirectionsMerge(RamMerge):
    """RAM read over directions of a layer's input, for agents that changed the same weights.

    Where an agent's update of a matrix is alone in using a direction of the input, it is kept
    whole there; what several agents do to one direction is averaged. Tensors that are not matrices
    are merged entry by entry, by length. See :mod:`mergekit_ram.kernels.solutions` for the formula.

    Called with tensor groups it merges them in memory, every matrix as ``[out, in]``. Results carry
    no gradient.
    """

    # Its criterion is that of WUDI-Merging.
    spec = _spec(
        "ram_directions", "over directions", EPSILON, RIDGE, SCALE, WEIGHT, paper="2503.08099"
    )


METHODS = {m.spec.name: m for m in (RamMerge(), RamPlusMerge(), RamDirectionsMerge())}


def _no_statistics(groups: Sequence[TensorGroup]) -> PlanError:
    names = ", ".join(str(group.metadata.name) for group in groups)
    return PlanError(
        f"ram_plus: tensor {names} is to be merged alone, without the counts of the whole model "
        "that its rescale factors come from. Plan the merge with mergekit's own planners while "
        "mergekit-ram is switched on, call the method with all tensor groups at once, or give "
        "`rescale` for every agent."
    )


def needs_counting(settings: Mapping[str, Any]) -> bool:
    """Whether some agent that takes part has no ``rescale`` of its own."""
    weight = settings["weight"]
    return any(
        value is None and weight[agent] != 0 for agent, value in settings.get("rescale", {}).items()
    )


def with_rescale(settings: Mapping[str, Any], statistics: OverlapStatistics) -> dict[str, Any]:
    """A copy of one group's parameters in which every agent has its λ_t."""
    r, alpha = settings["r"], settings["alpha"]
    rescale = [
        (agent, statistics.agent(agent_name(agent)).rescale(r, alpha) if given is None else given)
        for agent, given in settings["rescale"].items()
    ]
    return {**settings, "rescale": PerInputValues(rescale)}
