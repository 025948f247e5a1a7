"""Everything about a merge that can be known to fail before the long passes, from headers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from mergekit.common import dtype_from_name
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import PermutedVocabulary
from mergekit.tokenizer.truncate import TruncatedVocabulary

from mergekit_ram.errors import InputError
from mergekit_ram.merges.groups import lacking_base
from mergekit_ram.merges.headers import TensorHeader
from mergekit_ram.merges.loads import Load, PlannedLoads, PlannedOutput, TensorSize, loads_below
from mergekit_ram.plan.choice import ARCHITECTURE_REMEDY
from mergekit_ram.plan.uses import Uses
from mergekit_ram.plan.warnings import Rounding
from mergekit_ram.tensors import MERGEABLE_DTYPES

TOKENIZER_REMEDY = (
    "The vocabularies differ: align them with `tokenizer: {source: union}` (or `base`) in the YAML."
)


def check_merges(merges: Sequence[ExecuteMergeMethodTask]) -> Checked:
    """Compare what all merges will load, by the headers of the checkpoints.

    Raises:
        InputError: a missing tensor, another shape, or a dtype that cannot be merged.
    """
    uses = Uses()
    sizes: dict[str, TensorSize] = {}
    dtypes: set[torch.dtype] = set()
    planned: PlannedLoads = {}
    rounding = Rounding()
    rows: int | None = None
    for merge in merges:
        loads = planned[merge.output_weight.name] = list(loads_below(merge.gather_tensors))
        headers = {load.model: uses.header(load, merge) for load in loads}
        present = {model: header for model, header in headers.items() if header is not None}
        _check_presence(merge, loads, present)
        _check_dtypes(merge, present)
        _check_shapes(merge, present)
        rounding.add(_base(merge), loads, present)
        rows = _rows(merge, present) or rows
        if present:
            header = present.get(_base(merge), next(iter(present.values())))
            dtype = _output_dtype(merge, loads, present)
            sizes[merge.output_weight.name] = TensorSize(
                read=sum(header.nbytes for header in present.values()),
                written=header.numel * dtype.itemsize,
            )
            dtypes.add(dtype)
    names = sorted(str(dtype).split(".")[-1] for dtype in dtypes)
    output = PlannedOutput(sizes, tuple(names), planned, tuple(rounding.notes()), rows)
    return Checked(output, uses)


@dataclass(frozen=True)
class Checked:
    """What the plan's headers say, and which tensors of every model the plan uses."""

    output: PlannedOutput
    uses: Uses


def _rows(merge: ExecuteMergeMethodTask, present: Mapping[str, TensorHeader]) -> int | None:
    """Tokens that are left of a tensor that is cut to the smallest vocabulary."""
    axis = merge.output_weight.vocabulary_axis
    if axis is None or not isinstance(merge.gather_tensors, TruncatedVocabulary):
        return None
    return min((header.shape[axis] for header in present.values()), default=None)


def _check_presence(
    merge: ExecuteMergeMethodTask, loads: Sequence[Load], present: Mapping[str, TensorHeader]
) -> None:
    name, base = merge.output_weight.name, _base(merge)
    if base not in present and present:
        raise lacking_base(merge, present)
    for load in loads:
        if load.model not in present and not load.optional:
            raise InputError(
                f"model {load.model}: tensor {name} is missing, and the architecture requires "
                f"it. {ARCHITECTURE_REMEDY}"
            )


def _check_dtypes(merge: ExecuteMergeMethodTask, present: Mapping[str, TensorHeader]) -> None:
    if not any(header.dtype.is_floating_point for header in present.values()):
        return  # a buffer, which mergekit copies where it is equal
    for model, header in present.items():
        if header.dtype not in MERGEABLE_DTYPES:
            raise InputError(
                f"model {model}, tensor {merge.output_weight.name}: {header.dtype} weights "
                "cannot be merged; dequantise the model to bfloat16, float16 or float32 first"
            )


def _check_shapes(merge: ExecuteMergeMethodTask, present: Mapping[str, TensorHeader]) -> None:
    axis = merge.output_weight.vocabulary_axis
    is_aligned = isinstance(merge.gather_tensors, PermutedVocabulary | TruncatedVocabulary)
    base = _base(merge)
    if base not in present:
        return
    expected = present[base].shape
    for model, header in present.items():
        if header.shape == expected:
            continue
        differs_in_vocabulary_alone = axis is not None and _without(header.shape, axis) == _without(
            expected, axis
        )
        if differs_in_vocabulary_alone and is_aligned:
            continue
        remedy = TOKENIZER_REMEDY if differs_in_vocabulary_alone else ARCHITECTURE_REMEDY
        raise InputError(
            f"model {model}, tensor {merge.output_weight.name}: shape {list(header.shape)}, "
            f"but the base {base} has {list(expected)}. {remedy}"
        )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _base(merge: ExecuteMergeMethodTask) -> str:
    return str(merge.base_model)


def _output_dtype(
    merge: ExecuteMergeMethodTask, loads: Sequence[Load], present: Mapping[str, TensorHeader]
) -> torch.dtype:
    """The dtype that is written: as configured, or what all inputs promote to."""
    configured = dtype_from_name(merge.out_dtype)
    if configured is not None:
        return configured
    dtypes = [
        dtype_from_name(load.dtype) or present[load.model].dtype
        for load in loads
        if load.model in present
    ]
    return functools.reduce(torch.promote_types, dtypes)
