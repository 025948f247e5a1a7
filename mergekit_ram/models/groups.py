"""A planned merge outside of mergekit's graph: which tensors it loads, and its tensors loaded."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mergekit import merge_methods
from mergekit.common import ModelReference, dtype_from_name
from mergekit.graph import Task
from mergekit.io import ShardedTensorIndex
from mergekit.io.tasks import LoaderCache, LoadTensor
from mergekit.merge_methods.base import PerInputValues, TensorEntry, TensorGroup, TensorMetadata
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.tokenizer import BuildTokenizer, PermutedVocabulary

from mergekit_ram.errors import InputError, Note
from mergekit_ram.kernels import plain
from mergekit_ram.models.transformers_layout import Sides
from mergekit_ram.overlap import AgentOverlap
from mergekit_ram.tensors import MERGEABLE_DTYPES, agent_name

RAW_LOADER_MODULE = "mergekit.scripts.merge_raw_pytorch"
"""Looked up, not imported: a process that has not imported it has none of its tasks."""

DIGEST_LENGTH = 16
"""Hexadecimal digits; two different plans agree by chance once in 2**64."""

Tokenizers = dict[Task[Any], Any]
"""Tokenizers that were built already, by the task that builds them."""


@dataclass(frozen=True)
class Load:
    """One model's part in a merge, whichever of mergekit's tasks loads it."""

    model: str
    index: ShardedTensorIndex
    names: tuple[str, ...]
    dtype: str | None
    optional: bool
    reference: ModelReference | None = None


def loads_below(task: Task[Any]) -> Iterator[Load]:
    """The loading tasks below a gathering task."""
    raw = sys.modules.get(RAW_LOADER_MODULE)
    if isinstance(task, LoadTensor):
        names = (task.tensor, *(task.aliases or ()), *(task.tied_names or ()))
        index = LoaderCache().get(task.model).index
        yield Load(str(task.model), index, names, task.dtype, task.optional, task.model)
    elif raw is not None and isinstance(task, raw.SimpleLoadTensor):
        index = raw.SimpleLoaderCache().get(task.model).index
        yield Load(task.model, index, (task.tensor_name,), task.dtype, optional=True)
    else:
        for argument in task.arguments().values():
            yield from loads_below(argument)


PlannedLoads = dict[str, list[Load]]
"""What is loaded for each weight of the output."""


@dataclass(frozen=True)
class TensorSize:
    """Bytes of one weight of the output."""

    read: int
    """Of all models together."""
    written: int
    numel: int
    """Parameters of the base's; 0 of a tensor that is copied."""


@dataclass(frozen=True)
class PlannedOutput:
    """What a plan will read and write."""

    sizes: Mapping[str, TensorSize]
    """By weight, as far as a model holds it."""
    dtypes: tuple[str, ...]
    """Names of their dtypes."""
    loads: PlannedLoads
    notes: tuple[Note, ...] = ()
    """Warnings about the models."""
    copied: frozenset[str] = frozenset()
    """Weights of dtypes that are not merged; all models must hold the same."""
    sides: Sides | None = None
    """Of the model's matrices; None where transformers cannot build the model."""

    @property
    def size(self) -> int:
        """Bytes of all weights that are written."""
        return sum(size.written for size in self.sizes.values())


def loading_digest(merge: ExecuteMergeMethodTask, loads: Iterable[Load]) -> str:
    """What a merge loads, and how it is aligned and rounded before it is counted.

    Equal for the same tensors of the same models, wherever they are computed on.
    """
    gathering = merge.gather_tensors
    lines = [type(gathering).__name__, str(merge.base_model), str(merge.dtype)]
    lines += [f"{load.model} {load.names} {load.dtype}" for load in loads]
    if isinstance(gathering, PermutedVocabulary):
        tokenizer = gathering.tokenizer_task
        lines += [
            f"{tokenizer.tokenizer_source} {tokenizer.add_tokens} {gathering.pad_to_multiple_of}",
            *sorted(f"{name} {how}" for name, how in dict(gathering.tokens or {}).items()),
        ]
    return short_digest(lines)


def short_digest(lines: Iterable[str]) -> str:
    """A digest of some lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True)
class LoadedGroup:
    """Base and agents of one tensor, checked, with the parameters that hold for it."""

    group: TensorGroup
    settings: dict[str, Any]
    dtype: torch.dtype | None
    """What the inputs are rounded to first."""


def load_group(
    merge: ExecuteMergeMethodTask, tokenizers: Tokenizers, device: torch.device
) -> LoadedGroup | None:
    """Load what a merge would get; None where mergekit copies the tensor instead.

    Args:
        merge: of a planned weight.
        tokenizers: that were built for other weights of the plan; one is added when built.
        device: to put the tensors on.

    Raises:
        InputError: the base lacks the tensor, or mergekit refuses the group.
    """
    tensors = present(run_loading(merge.gather_tensors, tokenizers))
    return checked_group(merge, {model: tensor.to(device) for model, tensor in tensors.items()})


def checked_group(
    merge: ExecuteMergeMethodTask, tensors: Mapping[ModelReference, torch.Tensor]
) -> LoadedGroup | None:
    """The tensors that a merge has loaded; None where the base's is copied.

    Raises:
        InputError: the base lacks the tensor, the models' do not fit together, or one of a dtype
            that is not merged differs.
    """
    check_base_present(merge, tensors)
    group = tensor_group(merge, tensors)
    if _is_copied(group):
        return None
    try:
        group.validate_tensors()
    except ValueError as error:  # it names the tensor
        raise InputError(str(error)) from None
    agents = [model for model in agents_of(merge) if model in tensors]
    return LoadedGroup(group, settings_of(merge, agents), dtype_from_name(merge.dtype))


def run_loading(task: Task[Any], tokenizers: Tokenizers) -> Any:
    """Run mergekit's own loading tasks for one tensor, keeping nothing but tokenizers."""
    # Asked first, since every other task's hash covers all that is below it.
    is_kept = isinstance(task, BuildTokenizer)
    if is_kept and task in tokenizers:
        return tokenizers[task]
    arguments = {
        name: run_loading(argument, tokenizers) for name, argument in task.arguments().items()
    }
    value = task.execute(**arguments)
    if is_kept:
        tokenizers[task] = value
    return value


def present(
    tensors: dict[ModelReference, torch.Tensor | None],
) -> dict[ModelReference, torch.Tensor]:
    """Without the models that lack the tensor; some of mergekit's tasks list them with None."""
    return {model: tensor for model, tensor in tensors.items() if tensor is not None}


def tensor_group(
    merge: ExecuteMergeMethodTask, tensors: Mapping[ModelReference, torch.Tensor]
) -> TensorGroup:
    # Models are slow to compare and to look up, and asked for at every tensor.
    found = [(model, tensors.get(model)) for model in merge.model_order]
    entries = tuple(
        TensorEntry(id=model, tensor=tensor, is_base=is_base(merge, model))
        for model, tensor in found
        if tensor is not None
    )
    return TensorGroup(entries, TensorMetadata.from_weight_info(merge.output_weight))


def is_base(merge: ExecuteMergeMethodTask, model: ModelReference) -> bool:
    """Whether a model is what the others are compared with."""
    base = merge.base_model
    # Paths first, which nearly always tell.
    return base is not None and model.model.path == base.model.path and model == base


def map_tensors(
    group: TensorGroup, function: Callable[[torch.Tensor], torch.Tensor]
) -> TensorGroup:
    """The same group with another tensor of every model."""
    entries = tuple(
        TensorEntry(id=entry.id, tensor=function(entry.tensor), is_base=entry.is_base)
        for entry in group.entries
    )
    return TensorGroup(entries, group.metadata)


def settings_of(merge: ExecuteMergeMethodTask, agents: Sequence[ModelReference]) -> dict[str, Any]:
    """Shared parameters by name, and those of the given agents by name and agent."""
    method = merge_methods.get(merge.method_name)
    given = [(agent, merge.input_parameters[agent]) for agent in agents]
    per_agent = {
        parameter.name: PerInputValues([(agent, own[parameter.name]) for agent, own in given])
        for parameter in method.spec.input_parameters
    }
    return {**dict(merge.parameters.items()), **per_agent}


def agents_of(merge: ExecuteMergeMethodTask) -> list[ModelReference]:
    """The merge's models but for its base, in the order of the configuration."""
    return [model for model in merge.model_order if not is_base(merge, model)]


AgentPlaces = list[tuple[ExecuteMergeMethodTask, ModelReference]]
"""Merges that an agent is part of, one for every set of parameters that it meets there."""


def agent_places(merges: Sequence[ExecuteMergeMethodTask]) -> dict[str, AgentPlaces]:
    """The places of every agent, by its name."""
    found: dict[str, dict[object, tuple[ExecuteMergeMethodTask, ModelReference]]] = {}
    for merge in merges:
        shared = tuple(merge.parameters.items())
        for model in agents_of(merge):
            key = shared, tuple(merge.input_parameters[model].items())
            found.setdefault(agent_name(model), {}).setdefault(key, (merge, model))
    return {name: list(places.values()) for name, places in found.items()}


def factor_of(merge: ExecuteMergeMethodTask, model: ModelReference, agent: AgentOverlap) -> float:
    """λ_t of an agent in one merge: 1 by ``ram``, else by hand or computed."""
    if "r" not in merge.parameters:
        return 1.0
    by_hand: float | None = merge.input_parameters[model]["rescale"]
    if by_hand is not None:
        return by_hand
    return agent.rescale(merge.parameters["r"], merge.parameters["alpha"])


def _is_copied(group: TensorGroup) -> bool:
    """Whether a tensor is of a dtype that is not merged, and all models hold the same bits."""
    for entry in group.entries:
        if entry.tensor.dtype not in MERGEABLE_DTYPES:
            if plain.are_same(group.tensors):
                return True
            raise InputError(
                f"model {entry.id}, tensor {group.metadata.name}: {entry.tensor.dtype} values are "
                "not merged, and here they differ between the models. Dequantise weights to "
                "bfloat16, float16 or float32 first; give a buffer the base's values."
            )
    return False


def check_base_present(
    merge: ExecuteMergeMethodTask, tensors: Mapping[ModelReference, torch.Tensor]
) -> None:
    if merge.base_model is None or merge.base_model not in tensors:
        raise lacking_base(merge, tensors)


def lacking_base(merge: ExecuteMergeMethodTask, holders: Iterable[object]) -> InputError:
    """The error about a tensor that agents have and the base has not."""
    return InputError(
        f"tensor {merge.output_weight.name}: the base {merge.base_model} lacks it, while "
        f"{', '.join(sorted(map(str, holders)))} has it; an update of nothing is not defined. "
        "Use the base that these agents were trained from."
    )
