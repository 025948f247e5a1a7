"""One tensor of base and agents, as mergekit groups it: counted, merged, refused by name."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from mergekit.merge_methods.base import PerInputValues, TensorEntry, TensorGroup

from mergekit_ram.errors import InputError, ParameterError
from mergekit_ram.kernels import blocks, ram
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.overlap import AgentCounts, TensorOverlap

MERGEABLE_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

WAYS_OUT = {
    "rescale": " Set a smaller one, or where it is computed, 1 + r · clip(ρ, 0, alpha), a smaller "
    "`r` or `alpha`.",
}

_counted: ContextVar[list[TensorOverlap] | None] = ContextVar("counted", default=None)


@contextmanager
def counting_merges() -> Iterator[list[TensorOverlap]]:
    """Within it, every group that is merged adds its counts to the list."""
    counted: list[TensorOverlap] = []
    token = _counted.set(counted)
    try:
        yield counted
    finally:
        _counted.reset(token)


def add_counts(counts: TensorOverlap) -> None:
    """Within :func:`counting_merges`, add what was counted of one merged group."""
    counted = _counted.get()
    if counted is not None:
        counted.append(counts)


def agent_name(agent: Hashable) -> str:
    """The name under which an input is counted and reported."""
    return str(agent)


def base_of(group: TensorGroup) -> TensorEntry:
    assert group.base is not None, "the contract requires a base"
    return group.base


def agents_at_work(group: TensorGroup, settings: Mapping[str, Any]) -> list[TensorEntry]:
    """The agents that take part: those whose weight is not 0."""
    return [entry for entry in group.non_base if settings["weight"][entry.id] != 0]


def recipe_of(
    settings: Mapping[str, Any],
    agents: Sequence[TensorEntry],
    dtype: torch.dtype | None,
    out_dtype: torch.dtype | None,
) -> Recipe:
    """What a merge by these settings does to the agents that take part."""
    rescale = settings.get("rescale")
    return Recipe.of(
        len(agents),
        settings["epsilon"],
        None if rescale is None else rescale.values_for(agents),
        settings["weight"].values_for(agents),
        settings["scale"],
        settings.get("overlap_power", 1.0),  # ram_directions has none, and counts by a recipe too
        dtype=dtype,
        out_dtype=out_dtype,
    )


def count_group(
    group: TensorGroup, settings: Mapping[str, Any], *, dtype: torch.dtype | None = None
) -> TensorOverlap:
    """Count one group; an agent of weight 0 is listed and has no active parameter.

    Args:
        group: base and agents of one tensor, borrowed.
        settings: its resolved parameters; ``epsilon`` and ``weight`` are used.
        dtype: round the inputs to this dtype first.

    Raises:
        InputError: NaN or infinity, or a dtype that is no plain float.
        ParameterError: a number that the merge could not reckon with, told before all is counted.
    """
    base, agents = base_of(group), agents_at_work(group, settings)
    check_values(group, agents)
    with named_errors(group, [base, *agents]):
        recipe = recipe_of(_without_unknown(settings), agents, dtype, None)
        counts = ram.count_by(recipe, base.tensor, [agent.tensor for agent in agents])
    return _tensor_overlap(group, agents, counts)


def merge_group(
    group: TensorGroup,
    settings: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Merge one group by RAM, or by RAM+ where ``settings`` holds a ``rescale`` per agent.

    Within :func:`counting_merges` it is counted as well.

    Raises:
        InputError: NaN or infinity, a dtype that is no plain float, or a result that the
            output dtype cannot hold.
        ParameterError: a number that the dtype reckoned in cannot hold.
    """
    base, agents = base_of(group), agents_at_work(group, settings)
    check_values(group, agents)
    tensors = [agent.tensor for agent in agents]
    counted = _counted.get()
    with named_errors(group, [base, *agents]):
        recipe = recipe_of(settings, agents, dtype, out_dtype)
        if counted is None:
            return ram.merge_by(recipe, base.tensor, tensors)
        merged = ram.merge_and_count(recipe, base.tensor, tensors)
    counted.append(_tensor_overlap(group, agents, merged.counts))
    return merged.tensor


def _without_unknown(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """With 1 for every λ_t that is to be computed."""
    if "rescale" not in settings:
        return settings
    known = [(agent, 1.0 if λ is None else λ) for agent, λ in settings["rescale"].items()]
    return {**settings, "rescale": PerInputValues(known)}


def _tensor_overlap(
    group: TensorGroup, agents: Sequence[TensorEntry], counts: ram.OverlapCounts
) -> TensorOverlap:
    degrees = {agent.id: row for agent, row in zip(agents, counts.overlap_degree, strict=True)}
    return TensorOverlap(
        name=str(group.metadata.name),
        numel=counts.numel,
        agents=tuple(
            AgentCounts(
                model=agent_name(entry.id),
                overlap_degree=degrees.get(entry.id, (0,) * len(agents)),
            )
            for entry in group.non_base
        ),
    )


def check_values(group: TensorGroup, agents: Sequence[TensorEntry]) -> None:
    """Refuse what cannot be reckoned with, in models that take no part too."""
    for entry in group.entries:
        if entry.tensor.dtype not in MERGEABLE_DTYPES:
            raise InputError(
                f"model {entry.id}, tensor {group.metadata.name}: {entry.tensor.dtype} weights "
                "cannot be merged; dequantise the model to bfloat16, float16 or float32 first"
            )
    at_work = {entry.id for entry in agents}
    for entry in group.non_base:
        if entry.id not in at_work:
            with named_errors(group, [entry]):
                blocks.check_finite(entry.tensor)


@contextmanager
def named_errors(group: TensorGroup, entries: Sequence[TensorEntry]) -> Iterator[None]:
    """Give the kernels' errors the names of model and tensor."""
    name = group.metadata.name
    try:
        yield
    except blocks.KernelInputError as error:
        raise InputError(
            f"model {entries[error.index].id}, tensor {name}: {error.problem}; "
            "a merge with it would be wrong. Repair or re-download this checkpoint."
        ) from None
    except blocks.KernelOverflowError as error:
        raise InputError(
            f"tensor {name}: {error}. Set a wider `out_dtype:`, or a smaller `scale`."
        ) from None
    except blocks.KernelParameterError as error:
        # The first entry is the base.
        whose = "" if error.agent is None else f" of model {entries[error.agent + 1].id}"
        raise ParameterError(
            f"parameter '{error.name}'{whose} {error.problem} (tensor {name})."
            f"{WAYS_OUT.get(error.name, '')}"
        ) from None
