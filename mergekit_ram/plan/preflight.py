"""Everything about a merge that can be known to fail before the long passes, from headers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence

import torch
from mergekit.architecture.conversion import convert_checkpoint_tensors
from mergekit.common import dtype_from_name
from mergekit.io.tasks import LoaderCache
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import PermutedVocabulary
from mergekit.tokenizer.truncate import TruncatedVocabulary

from mergekit_ram.errors import InputError
from mergekit_ram.merges.groups import lacking_base
from mergekit_ram.merges.headers import TensorHeader, read_headers
from mergekit_ram.merges.loads import Load, PlannedLoads, PlannedOutput, TensorSize, loads_below
from mergekit_ram.plan.models import ARCHITECTURE_REMEDY
from mergekit_ram.tensors import MERGEABLE_DTYPES

LOG = logging.getLogger("mergekit_ram")

TOKENIZER_REMEDY = (
    "The vocabularies differ: align them with `tokenizer: {source: union}` (or `base`) in the YAML."
)


def check_merges(merges: Sequence[ExecuteMergeMethodTask]) -> PlannedOutput:
    """Compare what all merges will load, by the headers of the checkpoints.

    Raises:
        InputError: a missing tensor, another shape, or a dtype that cannot be merged.
    """
    checkpoints = _Checkpoints()
    sizes: dict[str, TensorSize] = {}
    dtypes: set[torch.dtype] = set()
    planned: PlannedLoads = {}
    narrowed: dict[str, tuple[torch.dtype, torch.dtype]] = {}
    for merge in merges:
        loads = planned[merge.output_weight.name] = list(loads_below(merge.gather_tensors))
        headers = {load.model: checkpoints.header(load) for load in loads}
        present = {model: header for model, header in headers.items() if header is not None}
        _check_presence(merge, loads, present)
        _check_dtypes(merge, present)
        _check_shapes(merge, present)
        for load in loads:
            wanted, header = dtype_from_name(load.dtype), present.get(load.model)
            if wanted and header and _narrower(wanted, header.dtype):
                narrowed.setdefault(load.model, (header.dtype, wanted))
        if present:
            header = present.get(_base(merge), next(iter(present.values())))
            dtype = _output_dtype(merge, loads, present)
            sizes[merge.output_weight.name] = TensorSize(
                read=sum(header.nbytes for header in present.values()),
                written=header.numel * dtype.itemsize,
            )
            dtypes.add(dtype)
    _warn_of_narrowing(narrowed)
    names = sorted(str(dtype).split(".")[-1] for dtype in dtypes)
    return PlannedOutput(sizes, tuple(names), planned)


class _Checkpoints:
    """Headers of the checkpoints of one plan, each file opened once."""

    def __init__(self) -> None:
        self._headers: dict[str, dict[str, TensorHeader]] = {}

    def header(self, load: Load) -> TensorHeader | None:
        headers = self._headers.get(load.model)
        if headers is None:
            headers = self._headers[load.model] = read_headers(load.index, load.model)
        for name in load.names:
            if name in headers:
                return headers[name]
        return self._converted(load, headers) if load.reference else None

    def _converted(self, load: Load, headers: dict[str, TensorHeader]) -> TensorHeader | None:
        """A tensor that mergekit assembles from others, such as packed experts."""
        assert load.reference is not None
        config = load.reference.config(trust_remote_code=LoaderCache().trust_remote_code)
        sources = {name: header.as_meta for name, header in headers.items()}
        for name in load.names:
            tensor = convert_checkpoint_tensors(config.model_type, sources, name)
            if tensor is not None:
                return TensorHeader(tuple(tensor.shape), tensor.dtype)
        return None


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


def _narrower(wanted: torch.dtype, stored: torch.dtype) -> bool:
    return stored.is_floating_point and torch.promote_types(wanted, stored) != wanted


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


def _warn_of_narrowing(narrowed: Mapping[str, tuple[torch.dtype, torch.dtype]]) -> None:
    for model, (stored, wanted) in narrowed.items():
        LOG.warning(
            "model %s: stored in %s and rounded to %s by `dtype:` before it is subtracted from "
            "the base, so that small updates vanish; use `out_dtype:` to round the result instead",
            model,
            stored,
            wanted,
        )
