"""Compares the tensors that a plan loads with those that the models hold, by headers alone.

mergekit drops without a word what a checkpoint holds besides the weights that it plans. Everything
about a merge that can be known to fail is found here, before the long passes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from mergekit.architecture.conversion import convert_checkpoint_tensors
from mergekit.common import dtype_from_name, set_config_value
from mergekit.io.tasks import LoaderCache
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import PermutedVocabulary
from mergekit.tokenizer.truncate import TruncatedVocabulary

from mergekit_ram.errors import InputError, Note, tell
from mergekit_ram.models.checkpoints import TensorHeader
from mergekit_ram.models.groups import (
    Load,
    PlannedOutput,
    TensorSize,
    agents_of,
    lacking_base,
    loads_below,
)
from mergekit_ram.models.loader import NamedIndex, headers_of
from mergekit_ram.models.matching import ARCHITECTURE_REMEDY
from mergekit_ram.models.prepare import Prepared
from mergekit_ram.plan.warnings import Rounding, say_whose_method, warn_about_idle_merges
from mergekit_ram.tensors import MERGEABLE_DTYPES
from mergekit_ram.text import some

TOKENIZER_REMEDY = "The vocabularies differ: align them with `tokenizer: {source: union}`."

Headers = Mapping[str, TensorHeader]  # of one tensor, by model


@dataclass
class Holding:
    """The tensors of one model, by their names in the plan.

    Attributes:
        headers: of all tensors that the model stores.
        used: the tensors that the plan loads.
        lacked: weights of the output that the model has nothing for.
    """

    headers: dict[str, TensorHeader]
    used: set[str] = field(default_factory=set)
    lacked: dict[str, None] = field(default_factory=dict)

    def unused(self) -> list[str]:
        """Floating tensors that the plan does not load."""
        floating = {n for n, header in self.headers.items() if header.dtype.is_floating_point}
        return sorted(floating - self.used)

    def parameters(self, names: Sequence[str]) -> str:
        """The number of parameters of some tensors, in words."""
        return f"{sum(self.headers[name].numel for name in names):,} parameters"


class Inventory:
    """The tensors of all models, marked as used or lacking as a plan's merges are added."""

    def __init__(self) -> None:
        self.models: dict[str, Holding] = {}
        self.loads: dict[str, list[Load]] = {}
        self.sizes: dict[str, TensorSize] = {}
        self.dtypes: set[torch.dtype] = set()
        self.copied: set[str] = set()
        self.rounding = Rounding()
        self.rows: int | None = None

    def add(self, merge: ExecuteMergeMethodTask) -> None:
        """Look up what one merge loads.

        Raises:
            InputError: a missing tensor, another shape, or a dtype that cannot be merged.
        """
        name, base = merge.output_weight.name, str(merge.base_model)
        # Some of mergekit's tasks hold their models in the order of a hash.
        order = [str(model) for model in merge.model_order]
        loads = sorted(loads_below(merge.gather_tensors), key=lambda load: order.index(load.model))
        self.loads[name] = loads
        found = {load.model: self.header(load, name) for load in loads}
        present = {model: header for model, header in found.items() if header is not None}
        if not present:
            return
        if base not in present:
            raise lacking_base(merge, present)
        _check_dtypes(name, present)
        _check_shapes(merge, present)
        is_merged = present[base].dtype in MERGEABLE_DTYPES
        if is_merged:
            self.rounding.add(base, loads, present)
        else:
            self.copied.add(name)
        axis = merge.output_weight.vocabulary_axis
        if axis is not None and isinstance(merge.gather_tensors, TruncatedVocabulary):
            self.rows = min(header.shape[axis] for header in present.values())
        dtype = _output_dtype(merge, loads, present) if is_merged else present[base].dtype
        read = sum(header.nbytes for header in present.values())
        self.sizes[name] = TensorSize(
            read,
            present[base].numel * dtype.itemsize,
            present[base].numel if is_merged else 0,
        )
        self.dtypes.add(dtype)

    def header(self, load: Load, weight: str) -> TensorHeader | None:
        """The header of what a load gives; None where the model has nothing for the weight.

        Raises:
            InputError: the tensor is needed, or the model's index lists it and no file holds it.
        """
        model = self.models.get(load.model)
        if model is None:
            model = self.models[load.model] = Holding(headers_of(load.index, load.model))
        for name in load.names:
            if name in model.headers:
                model.used.add(name)
                return model.headers[name]
        header = _converted(load, model) if load.reference else None
        if header is None:
            promised = load.index.promised if isinstance(load.index, NamedIndex) else {}
            for name in load.names:
                if name in promised:
                    raise promised[name]
            if not load.optional:
                raise InputError(
                    f"model {load.model}: tensor {weight} is missing, and the architecture "
                    f"requires it. {ARCHITECTURE_REMEDY}"
                )
            model.lacked[weight] = None
        return header


def check_plan(
    merges: Sequence[ExecuteMergeMethodTask],
    prepared: Prepared | None = None,
    out_config: Any = None,
) -> PlannedOutput:
    """What a plan will read and write, with everything that there is to say about its models.

    Args:
        merges: of the plan.
        prepared: its models; None for raw checkpoints.
        out_config: the output's configuration, which is made to fit the weights.

    Raises:
        InputError: the models do not fit together, or the output would not be the whole base.
    """
    if not merges:
        raise InputError(
            "the models have no tensor in common, so that the output would be empty. Give files "
            "of one model's agents, with the same names of tensors."
        )
    say_whose_method(merges[0].method_name)
    inventory = Inventory()
    for merge in merges:
        inventory.add(merge)
    known = prepared.known_names() if prepared else None
    notes = [*inventory.rounding.notes(), *_coverage(merges, inventory.models, known)]
    tell(notes)
    warn_about_idle_merges(merges)
    if prepared and inventory.rows is not None:
        key = str(prepared.architecture.vocab_size_config_key)
        set_config_value(out_config, key, inventory.rows)
    return PlannedOutput(
        sizes=inventory.sizes,
        dtypes=tuple(sorted(str(dtype).split(".")[-1] for dtype in inventory.dtypes)),
        loads=inventory.loads,
        copied=frozenset(inventory.copied),
        notes=(*(prepared.notes if prepared else ()), *notes),
        sides=prepared.layout.sides if prepared and prepared.layout else None,
    )


def _converted(load: Load, model: Holding) -> TensorHeader | None:
    """A tensor that mergekit assembles from others, such as packed experts."""
    assert load.reference is not None
    config = load.reference.config(trust_remote_code=LoaderCache().trust_remote_code)
    asked: set[str] = set()

    def give(name: str) -> torch.Tensor:
        asked.add(name)
        return model.headers[name].as_meta()

    sources = {name: functools.partial(give, name) for name in model.headers}
    for name in load.names:
        asked.clear()
        tensor = convert_checkpoint_tensors(config.model_type, sources, name)
        if tensor is not None:
            model.used |= asked
            return TensorHeader(tuple(tensor.shape), tensor.dtype)
    return None


def _check_dtypes(name: str, present: Headers) -> None:
    if len({header.dtype for header in present.values()}) == 1:
        return  # if it is none that is merged, it is copied where it is the same
    for model, header in present.items():
        if header.dtype not in MERGEABLE_DTYPES:
            raise InputError(
                f"model {model}, tensor {name}: {header.dtype} weights cannot be merged; "
                "dequantise the model to bfloat16, float16 or float32 first"
            )


def _check_shapes(merge: ExecuteMergeMethodTask, present: Headers) -> None:
    axis = merge.output_weight.vocabulary_axis
    is_aligned = isinstance(merge.gather_tensors, PermutedVocabulary | TruncatedVocabulary)
    base = str(merge.base_model)
    expected = present[base].shape
    for model, header in present.items():
        shape = header.shape
        sizes = zip(shape, expected, strict=False)
        differing = {number for number, (own, size) in enumerate(sizes) if own != size}
        in_rows_alone = len(shape) == len(expected) and differing == {axis}
        if shape == expected or (in_rows_alone and is_aligned):
            continue
        raise InputError(
            f"model {model}, tensor {merge.output_weight.name}: shape {list(shape)}, "
            f"but the base {base} has {list(expected)}. "
            f"{TOKENIZER_REMEDY if in_rows_alone else ARCHITECTURE_REMEDY}"
        )


def _output_dtype(
    merge: ExecuteMergeMethodTask, loads: Sequence[Load], present: Headers
) -> torch.dtype:
    """The dtype that is written: as configured, or the one that all inputs promote to."""
    dtypes = [
        dtype_from_name(load.dtype) or present[load.model].dtype
        for load in loads
        if load.model in present
    ]
    return dtype_from_name(merge.out_dtype) or functools.reduce(torch.promote_types, dtypes)


def _coverage(
    merges: Sequence[ExecuteMergeMethodTask], models: Mapping[str, Holding], known: set[str] | None
) -> Iterator[Note]:
    """Compare what the models hold with what the plan loads.

    Args:
        merges: of the plan.
        models: that it loads from.
        known: names that the architecture knows and the configuration leaves out on purpose, such
            as layers outside of its slices; None for raw checkpoints, of which mergekit merges
            what it was told to.
    """
    bases = dict.fromkeys(str(merge.base_model) for merge in merges)
    agents = dict.fromkeys(str(model) for merge in merges for model in agents_of(merge))
    left_out = set(known or ())
    for base in bases:
        lost = [name for name in models[base].unused() if name not in left_out]
        if not lost:
            continue
        what = f"model {base}: {len(lost)} tensors ({models[base].parameters(lost)})"
        if known is not None:
            raise InputError(
                f"{what} would be missing from the output, since no module or slice of the "
                f"configuration holds them: {some(lost)}. List the models under `models:`, where "
                "every tensor of the base is merged."
            )
        left_out |= set(lost)
        text = "are not in the output, since mergekit does not list them for this merge"
        yield Note("base-only", f"{what} {text}: {some(lost)}")
    parts = {agent: models[agent] for agent in agents if agent in models and agent not in bases}
    extra: dict[tuple[str, ...], list[str]] = {}
    for agent, part in parts.items():
        if not any(part.headers[name].dtype.is_floating_point for name in part.used):
            raise InputError(
                f"model {agent}: no tensor of it takes part in the merge; it holds "
                f"{some(sorted(part.headers)) or 'nothing'}. Leave it out, or give its tensors the "
                "names of the base's."
            )
        names = tuple(name for name in part.unused() if name not in left_out)
        extra.setdefault(names, []).append(agent)
        if part.lacked:
            yield Note(
                "agent-lacks-tensors",
                f"model {agent}: it lacks {len(part.lacked)} tensors of the base, where it counts "
                f"as unchanged: {some([*part.lacked])}",
            )
    held = [
        f"{', '.join(holders)}: {some(names)} ({parts[holders[0]].parameters(names)})"
        for names, holders in extra.items()
        if names
    ]
    if held:
        text = "tensors that the base does not have take no part and are not in the output"
        yield Note("agents-only", f"{text}: {'; '.join(held)}")
