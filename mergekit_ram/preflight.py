"""Everything about a merge that can be known to fail before the long passes, from headers."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mergekit.architecture.conversion import convert_checkpoint_tensors
from mergekit.common import ModelReference, dtype_from_name
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import LoaderCache
from mergekit.merge_methods.base import MergeMethodSpec
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import PermutedVocabulary
from mergekit.tokenizer.truncate import TruncatedVocabulary

from mergekit_ram.errors import InputError
from mergekit_ram.headers import TensorHeader, check_checkpoint, read_headers
from mergekit_ram.loads import Load, PlannedLoads, loads_below
from mergekit_ram.methods import MERGEABLE_DTYPES

LOG = logging.getLogger("mergekit_ram")

TOKENIZER_REMEDY = (
    "The vocabularies differ: align them with `tokenizer: {source: union}` (or `base`) in the YAML."
)
ARCHITECTURE_REMEDY = (
    "All models must be of one architecture and size, with the base that the agents were trained "
    "from as `base_model:`."
)


def find_architecture(
    find: Callable[..., Any], config: MergeConfiguration, *args: Any, **kwargs: Any
) -> Any:
    """mergekit's search for the models' architecture, after a check of their files.

    Raises:
        InputError: the models' files are broken, or do not fit together.
    """
    models = sorted(config.referenced_models(), key=str)
    check_models(models)
    try:
        return find(*args, **kwargs)
    except OSError as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"a configuration of the models {_listed(models)} cannot be read: {reason} "
            "A local folder is written as ./folder, a model of the hub as owner/name."
        ) from None
    except RuntimeError as error:
        raise InputError(
            f"the models {_listed(models)} do not fit together: {error}. {ARCHITECTURE_REMEDY}"
        ) from None


def check_models(models: Iterable[ModelReference]) -> None:
    """Check the files of all models that lie in local folders.

    Raises:
        InputError: a folder that does not exist or is named in two ways, a broken file,
            quantised weights.
    """
    folders: dict[tuple[Path, object], ModelReference] = {}
    for model in models:
        path = model.model.path
        if Path(path).is_dir():
            check_checkpoint(path, str(model))
            twin = folders.setdefault((Path(path).resolve(), model.lora), model)
            if twin is not model:
                raise InputError(
                    f"the models {twin} and {model} are the same folder; a merge would count its "
                    "updates twice. Name every model once, and in one way."
                )
        elif _looks_local(path):
            raise InputError(
                f"model {model}: there is no folder {path}. Correct the path; a model of the hub "
                "is written as owner/name."
            )
        if model.lora and _looks_local(model.lora.path) and not Path(model.lora.path).is_dir():
            raise InputError(f"model {model}: there is no adapter folder {model.lora.path}.")


def _listed(models: Iterable[ModelReference]) -> str:
    return ", ".join(map(str, models))


@dataclass(frozen=True)
class PlannedOutput:
    """What a plan will read and write."""

    size: int
    """Bytes of all weights."""
    dtypes: tuple[str, ...]
    """Names of their dtypes."""
    loads: PlannedLoads


def check_merges(merges: Sequence[ExecuteMergeMethodTask]) -> PlannedOutput:
    """Compare what all merges will load, by the headers of the checkpoints.

    Raises:
        InputError: a missing tensor, another shape, or a dtype that cannot be merged.
    """
    checkpoints = _Checkpoints()
    size = 0
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
            size += torch.Size(header.shape).numel() * dtype.itemsize
            dtypes.add(dtype)
    _warn_of_narrowing(narrowed)
    names = sorted(str(dtype).split(".")[-1] for dtype in dtypes)
    return PlannedOutput(size, tuple(names), planned)


def check_output(folder: str, size: int, inputs: Iterable[str]) -> None:
    """Check that a folder can be made, written to, hold ``size`` bytes, and is no input.

    Args:
        folder: to write to.
        size: of all merged weights, in bytes.
        inputs: folders that are read from.

    Raises:
        InputError: naming the folder, and what is needed and free.
    """
    target = Path(folder).resolve()
    if any(Path(path).resolve() == target for path in inputs):
        raise InputError(
            f"output folder {folder}: it is also the folder of a model that is merged, and would "
            "be overwritten while it is read. Choose another one."
        )
    parent = target
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(
            f"output folder {folder}: {parent} is not a folder that can be written to. "
            "Choose another one."
        )
    free = shutil.disk_usage(parent).free
    if free < size:
        raise InputError(
            f"output folder {folder}: the merged weights take {size / 1e6:,.1f} MB, and "
            f"{free / 1e6:,.1f} MB are free. Make room, choose another folder, or a narrower "
            "`out_dtype:`."
        )


def warn_about_parameters(config: MergeConfiguration, spec: MergeMethodSpec) -> None:
    """Warn of parameters that the method does not know, or not there; mergekit ignores both."""
    known = [parameter.name for parameter in spec.parameters]
    shared = [parameter.name for parameter in spec.shared_parameters]
    for name, is_of_model in dict.fromkeys(_parameter_names(config.model_dump())):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it knows {', '.join(known)}."
            LOG.warning(
                "parameter '%s' has no effect: %s does not know it; %s", name, spec.name, hint
            )
        elif is_of_model and name in shared:
            LOG.warning(
                "parameter '%s' has no effect under a model: it is one of the whole merge; write "
                "it under `parameters:` at the top, of a module, or of a slice",
                name,
            )


def _parameter_names(node: Any) -> Iterator[tuple[str, bool]]:
    """The keys of every ``parameters:`` section, and whether it belongs to one model."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "parameters" and isinstance(value, Mapping):
                yield from ((name, "model" in node) for name in value)
            else:
                yield from _parameter_names(value)
    elif isinstance(node, list | tuple):
        for item in node:
            yield from _parameter_names(item)


def _looks_local(path: str) -> bool:
    return path.startswith((".", "/", "~")) or path.count("/") > 1


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


def lacking_base(merge: ExecuteMergeMethodTask, holders: Iterable[object]) -> InputError:
    """The error about a tensor that agents have and the base has not."""
    return InputError(
        f"tensor {merge.output_weight.name}: the base {_base(merge)} lacks it, while "
        f"{', '.join(map(str, holders))} has it; an update of nothing is not defined. Use the "
        "base that these agents were trained from."
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
