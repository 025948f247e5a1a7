"""Parameters that would have no effect, which mergekit does not tell."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from mergekit.config import MergeConfiguration
from mergekit.merge_methods.base import MergeMethodSpec

LOG = logging.getLogger("mergekit_ram")


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
