"""On which side the matrices of a model take their input, as transformers' modules tell it.

The model is built without memory from its configuration; neither weights nor a network are needed.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mergekit.common import ModelReference
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from mergekit_ram.directions import NO_MATRICES
from mergekit_ram.kernels.updates import Layout

LOG = logging.getLogger("mergekit_ram")

INPUT_FIRST = frozenset(
    {
        "AriaGroupedExpertsGemm",
        "Conv1D",
        "CsmCodebooksHead",
        "GptOssExperts",
        "GroupedLinearLayer",
        "Llama4TextExperts",
        "RecurrentGemmaRglru",
    }
)
"""transformers' classes of modules whose weights are stored ``[…, in, out]``; packed experts of its
newer ones say so themselves."""

EXPERT_AXES = 3

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Layouts:
    """The layouts of a model's tensors, by name.

    Args:
        found: by the parameters' names in the module, with the numbers of layers.
    """

    def __init__(self, found: Mapping[str, Layout] | None = None):
        self._by_name: dict[str, Layout] = {}
        by_tail: dict[str, set[Layout]] = {}
        for name, layout in (found or {}).items():
            pattern = _NUMBER.sub("*", name)
            self._by_name[pattern] = layout
            by_tail.setdefault(_tail(pattern), set()).add(layout)
        self._by_tail = {tail: next(iter(s)) for tail, s in by_tail.items() if len(s) == 1}

    def find(self, name: str) -> Layout | None:
        """The layout of a tensor; None where the modules do not tell.

        Checkpoints may call a tensor by another prefix than the module does; what follows the
        number of its layer is then enough, if it is one kind of tensor everywhere.
        """
        pattern = _NUMBER.sub("*", name)
        return self._by_name.get(pattern) or self._by_tail.get(_tail(pattern))


def layouts_of(config: Any) -> Layouts:
    """The layouts of the model that a configuration of transformers describes.

    Where transformers cannot build it nothing is known, and the last axis is the input's.
    """
    try:
        model = _build(config)
    except Exception as error:
        # Code of any model may raise anything.
        reason = " ".join(str(error).split()) or type(error).__name__
        LOG.debug("the sides of the model's matrices are not known, the module: %s", reason)
        return Layouts()
    return Layouts(dict(_told_by(model)))


def layouts_of_model(model: ModelReference | None) -> Layouts:
    """The layouts of a checkpoint's model; none where its configuration cannot be read."""
    try:
        return Layouts() if model is None else layouts_of(model.config())
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        LOG.debug("the sides of the model's matrices are not known, the configuration: %s", error)
        return Layouts()


def _build(config: Any) -> torch.nn.Module:
    import transformers
    from transformers.initialization import no_init_weights

    (name,) = config.architectures
    # Building a model may note things in its configuration.
    config = copy.deepcopy(config)
    with torch.device("meta"), no_init_weights(), torch.random.fork_rng(devices=[]):
        model: torch.nn.Module = getattr(transformers, name)(config)
    return model


def _told_by(model: torch.nn.Module) -> Iterator[tuple[str, Layout]]:
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            layout = _layout(module, name, parameter.ndim)
            if layout is not None:
                yield f"{prefix}.{name}".lstrip("."), layout


def _layout(module: torch.nn.Module, name: str, axes: int) -> Layout | None:
    """What a module tells of one of its parameters."""
    if axes < 2:
        return None
    if name.endswith(NO_MATRICES):
        return Layout(has_matrices=False)
    if isinstance(module, _ConvNd):
        return Layout(input_last=not isinstance(module, _ConvTransposeNd))
    is_transposed = getattr(module, "is_transposed", type(module).__name__ in INPUT_FIRST)
    if axes == EXPERT_AXES:
        return Layout(input_last=not is_transposed, packed=True)
    return Layout(input_last=not is_transposed) if axes == 2 and name == "weight" else None


def _tail(pattern: str) -> str:
    """What follows the number of a layer."""
    return pattern.rpartition("*.")[2]
