"""Methods and parameters that are not known, which mergekit tells badly or not at all."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mergekit.merge_methods.base import MergeMethodSpec
from pydantic import BaseModel

from mergekit_ram.errors import MethodError

LOG = logging.getLogger("mergekit_ram")


def unknown_method(name: str, known: Iterable[str]) -> MethodError:
    """The error about a merge method that does not exist.

    >>> str(unknown_method("ramplus", ["linear", "ram", "ram_plus"]))
    "Unimplemented merge method ramplus: did you mean 'ram_plus'?"
    """
    names = sorted(known)
    plain = {other: other.replace("_", "") for other in names}
    # Nobody remembers where the underscores are, and a plus is spoken.
    wanted = name.lower().replace("+", "plus").replace("-", "").replace("_", "").replace(" ", "")
    close = difflib.get_close_matches(wanted, plain.values(), n=1)
    nearest = next((other for other in names if close and plain[other] == close[0]), None)
    hint = f"did you mean '{nearest}'?" if nearest else f"there are {', '.join(names)}."
    return MethodError(f"Unimplemented merge method {name}: {hint}")


def warn_about_parameters(config: BaseModel, spec: MergeMethodSpec) -> None:
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
