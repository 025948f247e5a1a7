"""Which of a checkpoint's tensors a plan uses, and which of the plan's a checkpoint lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from mergekit.architecture.conversion import convert_checkpoint_tensors
from mergekit.io.tasks import LoaderCache
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.merges.headers import TensorHeader
from mergekit_ram.merges.loads import Load
from mergekit_ram.merges.naming import headers_of, promises_of


@dataclass
class Use:
    """One model's part in a plan, by the plan's names of tensors.

    Attributes:
        headers: of all tensors that the model stores.
        used: the tensors that the plan loads.
        lacked: weights of the output that the model has nothing for.
    """

    headers: dict[str, TensorHeader]
    used: set[str] = field(default_factory=set)
    lacked: list[str] = field(default_factory=list)

    def unused(self) -> list[str]:
        """Floating tensors that the plan does not load."""
        return sorted(
            name
            for name, header in self.headers.items()
            if header.dtype.is_floating_point and name not in self.used
        )

    def numel(self, names: list[str]) -> int:
        """Parameters of some tensors."""
        return sum(torch.Size(self.headers[name].shape).numel() for name in names)


class Uses:
    """The parts of all models, filled in while the plan's headers are looked up."""

    def __init__(self) -> None:
        self.by_model: dict[str, Use] = {}

    def header(self, load: Load, merge: ExecuteMergeMethodTask) -> TensorHeader | None:
        """What a load will give; None where the model has nothing for it.

        Raises:
            InputError: the model's index lists the tensor and no file holds it.
        """
        use = self.by_model.get(load.model)
        if use is None:
            use = self.by_model[load.model] = Use(headers_of(load.index, load.model))
        for name in load.names:
            if name in use.headers:
                use.used.add(name)
                return use.headers[name]
        header = _converted(load, use) if load.reference else None
        if header is not None:
            return header
        promised = promises_of(load.index)
        for name in load.names:
            if name in promised:
                raise promised[name]
        use.lacked.append(merge.output_weight.name)
        return None


def _converted(load: Load, use: Use) -> TensorHeader | None:
    """A tensor that mergekit assembles from others, such as packed experts."""
    assert load.reference is not None
    config = load.reference.config(trust_remote_code=LoaderCache().trust_remote_code)
    for name in load.names:
        asked: set[str] = set()
        sources = {source: _asking(source, header, asked) for source, header in use.headers.items()}
        tensor = convert_checkpoint_tensors(config.model_type, sources, name)
        if tensor is not None:
            use.used |= asked
            return TensorHeader(tuple(tensor.shape), tensor.dtype)
    return None


def _asking(name: str, header: TensorHeader, asked: set[str]) -> Callable[[], torch.Tensor]:
    """Gives a tensor without data, and remembers that it was asked for."""

    def tensor() -> torch.Tensor:
        asked.add(name)
        return header.as_meta()

    return tensor
