"""Warnings before the long passes: rounded updates, merges without effect, whose `ram` it is."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator, Mapping, Sequence

import torch
from mergekit.common import dtype_from_name
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.errors import Note, warn
from mergekit_ram.models.checkpoints import TensorHeader
from mergekit_ram.models.groups import Load, agent_places
from mergekit_ram.switches import DISABLE_VARIABLE, QUIET_VARIABLE, is_set

LOG = logging.getLogger("mergekit_ram")

_announced: set[str] = set()
"""The methods that were announced in this process."""


class Rounding:
    """The dtypes in which a plan's models are stored and loaded, tensor by tensor."""

    def __init__(self) -> None:
        self._wider: dict[tuple[str, torch.dtype, torch.dtype], dict[str, None]] = {}
        self._rounded: dict[str, tuple[torch.dtype, torch.dtype]] = {}
        self._bases: set[str] = set()
        self._keeps_agents = False

    def add(self, base: str, loads: Sequence[Load], present: Mapping[str, TensorHeader]) -> None:
        """Add one tensor: its loads, and the headers of the models that hold it."""
        loaded = {
            load.model: dtype_from_name(load.dtype) or present[load.model].dtype
            for load in loads
            if load.model in present and present[load.model].dtype.is_floating_point
        }
        for model, wanted in loaded.items():
            stored = present[model].dtype
            if model == base:
                self._bases.add(base)
            elif base in loaded and torch.finfo(loaded[base]).eps < torch.finfo(wanted).eps:
                self._wider.setdefault((base, loaded[base], wanted), {})[model] = None
            if torch.promote_types(wanted, stored) != wanted:
                self._rounded.setdefault(model, (stored, wanted))
            elif model != base:
                self._keeps_agents = True

    def notes(self) -> Iterator[Note]:
        """A base stored wider than its agents, and models that ``dtype:`` rounds.

        Rounding a base to the dtype in which its agents are stored makes them comparable, and is
        not warned of.
        """
        for (base, wide, narrow), agents in self._wider.items():
            yield Note(
                "base-stored-wider",
                f"the base {base} is stored in {wide} and {', '.join(agents)} in {narrow}: where "
                "an agent changed nothing, it can differ from the base by its rounding, and then "
                f"counts as active. `dtype: {str(narrow).removeprefix('torch.')}` rounds the base "
                "as the agents were rounded",
            )
        for model, (stored, wanted) in self._rounded.items():
            if not (model in self._bases and self._keeps_agents):
                yield Note(
                    "inputs-rounded",
                    f"model {model}: stored in {stored} and rounded to {wanted} by `dtype:` before "
                    "it is subtracted from the base, so that small updates vanish; use "
                    "`out_dtype:` to round the result instead",
                )


def warn_about_idle_merges(merges: Sequence[ExecuteMergeMethodTask]) -> None:
    """Warn of a merge whose result is the base or, but for small changes, one agent.

    Args:
        merges: all of one plan, at least one.
    """
    base, at_work = merges[0].base_model, []
    for name, places in agent_places(merges).items():
        if any(merge.input_parameters[model]["weight"] != 0 for merge, model in places):
            at_work.append(name)
    if not at_work or all(merge.parameters["scale"] == 0 for merge in merges):
        warn(f"scale or every agent's weight is 0: the merge is the base {base}.")
    elif len(at_work) == 1:
        warn(
            f"{at_work[0]} is merged alone: with one agent nothing overlaps, and the merge is that "
            "agent, but for changes within epsilon."
        )


def say_whose_method(name: str) -> None:
    """Log whose ``ram`` it is, the first time in a process."""
    if name == "ram" and name not in _announced and not is_set(QUIET_VARIABLE):
        _announced.add(name)
        LOG.warning(
            "merge method 'ram' is that of mergekit-ram %s, in place of mergekit's own; "
            "%s=1 restores it, %s=1 silences this line",
            importlib.metadata.version("mergekit-ram"),
            DISABLE_VARIABLE,
            QUIET_VARIABLE,
        )
