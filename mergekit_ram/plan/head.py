"""Output embeddings that are stored apart from the input embedding that they are tied to.

``tie_word_embeddings: true`` is what a model was trained with, or what nobody has changed in its
configuration. transformers looks at the tensors, and so does a merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from mergekit.architecture import WeightInfo
from mergekit.common import ModelReference

from mergekit_ram.merges.naming import NamedLoader
from mergekit_ram.merges.notes import Note

TIE = "tie_word_embeddings"


def ties(config: Any) -> bool:
    """Whether a configuration says that the output embedding is the input embedding."""
    return bool(getattr(config, TIE, False))


def untie(config: Any) -> None:
    """Make a configuration say that it is not."""
    for part in (config, config.get_text_config()):
        if getattr(part, TIE, None):
            setattr(part, TIE, False)


def heads_apart(
    weights: Iterable[WeightInfo], loaders: Mapping[ModelReference, NamedLoader]
) -> Iterator[Note]:
    """Models whose stored output embedding is another tensor than their input embedding.

    Args:
        weights: of the architecture.
        loaders: of all models.
    """
    for weight in weights:
        for tied in weight.tied_names or ():
            apart = [
                str(model)
                for model, loader in loaders.items()
                if _differ(loader, weight.name, tied)
            ]
            if apart:
                yield Note(
                    "untied-head",
                    f"{', '.join(apart)}: {weight.name} is stored and differs from {tied}, though "
                    f"the base's configuration ties them ({TIE}: true). It is merged as a weight "
                    f"of its own, and the output's configuration says {TIE}: false.",
                )


def _differ(loader: NamedLoader, first: str, second: str) -> bool:
    headers, stored = loader.checkpoint.headers, loader.stored
    if first not in stored or second not in stored:
        return False
    if headers[stored[first]].shape != headers[stored[second]].shape:
        return True
    one, other = loader.get_tensor(first), loader.get_tensor(second)
    loader.flush()
    assert one is not None
    assert other is not None
    dtype = torch.promote_types(one.dtype, other.dtype)
    return not torch.equal(one.to(dtype), other.to(dtype))
