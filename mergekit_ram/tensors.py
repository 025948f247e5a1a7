"""One tensor of base and agents, as mergekit groups it: counted, merged, refused by name."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from mergekit.merge_methods.base import TensorEntry, TensorGroup

from mergekit_ram.errors import InputError, ParameterError, warn
from mergekit_ram.kernels import blocks, directions, plain, ram
from mergekit_ram.kernels.matrices import Layout
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.kernels.solutions import KernelRidgeError
from mergekit_ram.overlap import AgentCounts, TensorOverlap

MERGEABLE_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

NO_MATRICES = ("bias", ".A_log")
"""How parameters end that nothing is multiplied by as a matrix, however many axes they have."""


@dataclass(frozen=True)
class MergedTensor:
    """One tensor of the output, and the counts of its inputs if they were asked for."""

    tensor: torch.Tensor
    counts: TensorOverlap | None = None


def default_layout(name: str, shape: Sequence[int]) -> Layout:
    """Where a tensor holds its matrices if nothing but its name and shape is known.

    The last axis is the input's. Of three axes the first one counts experts, unless the name
    says that it is a convolution; with more it is one.
    """
    is_vector = len(shape) > 2 and sum(size > 1 for size in shape) < 2
    if is_vector or name.endswith(NO_MATRICES):
        return Layout(has_matrices=False)
    return Layout(packed=len(shape) == 3 and "conv" not in name.lower())


_told_of_nan: set[str] = set()
"""Bases of this plan in which a NaN was told of."""


def forget_nan() -> None:
    """Tell of NaN again, in another plan."""
    _told_of_nan.clear()


def is_unchanged(group: TensorGroup) -> bool:
    """Whether all models hold the same bits; the first NaN among them is logged."""
    if not plain.are_same([entry.tensor for entry in group.entries]):
        return False
    base, name = base_of(group), group.metadata.name
    can_be_nan = base.tensor.dtype in MERGEABLE_DTYPES and str(base.id) not in _told_of_nan
    if can_be_nan and base.tensor.isnan().any():
        _told_of_nan.add(str(base.id))
        warn(f"model {base.id}: tensor {name} holds NaN in all models, and keeps it")
    return True


def _unchanged(
    group: TensorGroup, dtype: torch.dtype | None, out_dtype: torch.dtype | None
) -> torch.Tensor | None:
    """The base's tensor as it is written, where all models hold the same bits.

    None where it is rounded and may be too large for that: as a merge it is refused by name.
    """
    base = base_of(group).tensor
    if not is_unchanged(group):
        return None
    dtypes = [dtype or base.dtype, out_dtype or dtype or base.dtype]
    if dtypes == [base.dtype] * 2 or base.dtype not in MERGEABLE_DTYPES:
        return base.clone()
    if base.isfinite().all():
        return None
    return blocks.rounded(blocks.rounded(base, dtypes[0]), dtypes[1])


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
    """What a merge by these settings does to the agents that take part.

    A λ_t that is still to be computed counts as 1.
    """
    rescale = settings["rescale"].values_for(agents) if "rescale" in settings else None
    return Recipe.of(
        len(agents),
        settings["epsilon"],
        rescale and [1.0 if factor is None else factor for factor in rescale],
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
        ParameterError: a number that the merge could not compute with, told before the long pass.
    """
    base, agents = base_of(group), agents_at_work(group, settings)
    if is_unchanged(group):
        return _tensor_overlap(group, agents, _nothing(base.tensor, len(agents)))
    check_values(group, agents)
    with named_errors(group, [base, *agents]):
        recipe = recipe_of(settings, agents, dtype, None)
        tensors = [agent.tensor for agent in agents]
        counts = ram.merge_and_count(recipe, base.tensor, tensors, merges=False).counts
    return _tensor_overlap(group, agents, counts)


def merge_group(
    group: TensorGroup,
    settings: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    layout: Layout | None = None,
    counted: bool = False,
) -> MergedTensor:
    """Merge one group: over directions where ``settings`` holds a ``ridge``, else by RAM.

    It is RAM+ where there is a ``rescale`` per agent.

    Args:
        group: base and agents of one tensor, borrowed.
        settings: its resolved parameters.
        dtype: round the inputs to this dtype first.
        out_dtype: of the result; by default the one that the inputs promote to.
        layout: where it holds its matrices; by default as :func:`default_layout` says.
        counted: count it as well.

    Raises:
        InputError: NaN or infinity, a dtype that is no plain float, a result that the output dtype
            cannot hold, or a ridge that is lost in rounding.
        ParameterError: a number that the dtype computed in cannot hold.
    """
    base, agents = base_of(group), agents_at_work(group, settings)
    kept = _unchanged(group, dtype, out_dtype)
    if kept is not None:
        nothing = _nothing(kept, len(agents))
        return MergedTensor(kept, _tensor_overlap(group, agents, nothing))
    if "ridge" in settings:
        counts = count_group(group, settings, dtype=dtype)
        return _merge_directions(group, counts, settings, layout, dtype, out_dtype)
    check_values(group, agents)
    tensors = [agent.tensor for agent in agents]
    with named_errors(group, [base, *agents]):
        recipe = recipe_of(settings, agents, dtype, out_dtype)
        found = ram.merge_and_count(recipe, base.tensor, tensors, counts=counted)
    overlap = _tensor_overlap(group, agents, found.counts) if counted else None
    return MergedTensor(found.tensor, overlap)


def _merge_directions(
    group: TensorGroup,
    counts: TensorOverlap,
    settings: Mapping[str, Any],
    layout: Layout | None,
    dtype: torch.dtype | None,
    out_dtype: torch.dtype | None,
) -> MergedTensor:
    """Merge the agents that changed anything."""
    base, name = base_of(group), str(group.metadata.name)
    active = {agent.model for agent in counts.agents if agent.active}
    agents = [entry for entry in group.non_base if agent_name(entry.id) in active]
    try:
        with named_errors(group, [base, *agents]):
            merged = directions.merge(
                base.tensor,
                [agent.tensor for agent in agents],
                epsilon=settings["epsilon"],
                ridge=settings["ridge"],
                weight=settings["weight"].values_for(agents),
                scale=settings["scale"],
                layout=layout or default_layout(name, base.tensor.shape),
                dtype=dtype,
                out_dtype=out_dtype,
            )
    except KernelRidgeError:
        raise InputError(
            f"tensor {name}: with `ridge: {settings['ridge']:g}` rounding is larger than the "
            "ridge, even in float64. Set a larger one; 0.05 to 1 are usual."
        ) from None
    return MergedTensor(merged, counts)


def _nothing(tensor: torch.Tensor, agents: int) -> ram.OverlapCounts:
    """The counts of a tensor that no agent has changed."""
    return ram.OverlapCounts(tensor.numel(), ((0,) * agents,) * agents)


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
    """Refuse values that cannot be merged, also in models that take no part."""
    for entry in group.entries:
        if entry.tensor.dtype not in MERGEABLE_DTYPES:
            raise InputError(
                f"model {entry.id}, tensor {group.metadata.name}: {entry.tensor.dtype} weights "
                "cannot be merged; dequantise the model to bfloat16, float16 or float32 first"
            )
        if not entry.is_base and all(entry is not agent for agent in agents):
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
            " Set a smaller one; λ is 1 + r · clip(ρ, 0, alpha) where it is computed."
        ) from None
