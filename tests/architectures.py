"""Tiny models of many architectures, built by transformers from their own configurations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from decoders import DECODERS
from other_models import OTHERS

ARCHITECTURES = DECODERS | OTHERS


def build(name: str) -> torch.nn.Module:
    """A random model in bfloat16."""
    model_class, config_class, settings = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**settings)
    make: Callable[..., torch.nn.Module] = getattr(transformers, model_class)._from_config
    return make(config, dtype=torch.bfloat16)
