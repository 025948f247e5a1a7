"""``ram_directions`` as mergekit's merge method, and the side of the matrices that it merges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from mergekit.merge_methods.base import (
    BatchOptions,
    MergeMethodSpec,
    OptionalTensorPolicy,
    TensorGroup,
)

from mergekit_ram import parameters
from mergekit_ram.errors import InputError
from mergekit_ram.kernels import directions as kernels
from mergekit_ram.kernels.matrices import Layout
from mergekit_ram.kernels.solutions import KernelRidgeError
from mergekit_ram.methods import CONTRACT, RamMerge
from mergekit_ram.tensors import add_counts, base_of, count_group, named_errors

NO_MATRICES = ("bias", ".A_log")
"""How parameters end that nothing is multiplied by as a matrix, however many axes they have."""

_layout: ContextVar[Layout | None] = ContextVar("layout", default=None)


class RamDirectionsMerge(RamMerge):
    """RAM read over directions of a layer's input, for agents that changed the same weights.

    Where an agent's update of a matrix is alone in using a direction of the input, it is kept
    whole there; what several agents do to one direction is averaged. Vectors, and whatever else
    is no matrix, are merged entry by entry: by length. See
    :mod:`mergekit_ram.kernels.solutions` for the formula.

    Called with tensor groups it merges them in memory, every matrix as ``[out, in]``; within
    :func:`laid_out` as it says. Results carry no gradient.
    """

    spec = MergeMethodSpec(
        name="ram_directions",
        parameters=(
            parameters.EPSILON,
            parameters.RIDGE,
            parameters.SCALE,
            parameters.WEIGHT,
        ),
        contract=CONTRACT,
        pretty_name="Reinforced Agent Merging over directions",
        reference_url=RamMerge.spec.reference_url,
        optional_tensor_policy=OptionalTensorPolicy.PASSTHROUGH_BASE_SINGLETON,
    )

    def _execute(
        self,
        groups: Sequence[TensorGroup],
        parameters: list[dict[str, Any]],
        options: BatchOptions,
        *,
        input_dtypes: Sequence[torch.dtype | None],
        out_dtype: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, ...]:
        return tuple(
            merge_group(group, settings, dtype=dtype, out_dtype=out_dtype)
            for group, settings, dtype in zip(groups, parameters, input_dtypes, strict=True)
        )


@contextmanager
def laid_out(layout: Layout | None) -> Iterator[None]:
    """Within it, tensors that are merged hold their matrices like this; None: as by default."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


def default_layout(name: str, shape: Sequence[int]) -> Layout:
    """Where a tensor holds its matrices if nothing but its name and shape is known.

    The last axis is the input's. Of three axes the first one counts experts, unless the name
    says that it is a convolution; with more it is one.
    """
    is_vector = len(shape) > 2 and sum(size > 1 for size in shape) < 2
    if is_vector or name.endswith(NO_MATRICES):
        return Layout(has_matrices=False)
    return Layout(packed=len(shape) == 3 and "conv" not in name.lower())


def merge_group(
    group: TensorGroup,
    settings: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Merge one group over directions, and count it.

    Raises:
        InputError: NaN or infinity, a dtype that is no plain float, a result that the output
            dtype cannot hold, or a ridge too small to reckon with.
    """
    counts = count_group(group, settings, dtype=dtype)
    add_counts(counts)
    base = base_of(group)
    active = {agent.model for agent in counts.agents if agent.active}
    agents = [entry for entry in group.non_base if str(entry.id) in active]
    name = str(group.metadata.name)
    with named_errors(group, [base, *agents]):
        try:
            return kernels.merge(
                base.tensor,
                [agent.tensor for agent in agents],
                epsilon=settings["epsilon"],
                ridge=settings["ridge"],
                weight=settings["weight"].values_for(agents),
                scale=settings["scale"],
                layout=_layout.get() or default_layout(name, base.tensor.shape),
                dtype=dtype,
                out_dtype=out_dtype,
            )
        except KernelRidgeError:
            raise InputError(
                f"tensor {name}: with `ridge: {settings['ridge']:g}` rounding is larger than the "
                "ridge, even in float64. Set a larger one; 0.05 to 1 are usual."
            ) from None
