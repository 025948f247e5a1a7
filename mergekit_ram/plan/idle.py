"""Merges that give what is there already, which nobody means to wait for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.merges.groups import agents_of

LOG = logging.getLogger("mergekit_ram")


def warn_about_idle_merges(merges: Sequence[ExecuteMergeMethodTask]) -> None:
    """Warn where one agent is merged alone, or where weights or scale leave the base.

    Args:
        merges: all of one plan, at least one.
    """
    agents, taking_part = set(), set()
    for merge in merges:
        for model in agents_of(merge):
            name = str(model)
            agents.add(name)
            if dict(merge.input_parameters[model]).get("weight", 1.0) != 0:
                taking_part.add(name)
    base = merges[0].base_model
    if not taking_part:
        LOG.warning(
            "every agent's weight is 0: the merge is the base %s. Give a `weight` other than 0 to "
            "the agents that should take part.",
            base,
        )
    elif all(_scale(merge.parameters) == 0 for merge in merges):
        LOG.warning("scale is 0: the merge is the base %s. 1 is the whole merge.", base)
    elif len(taking_part) == 1:
        more = ", since the weight of the others is 0" if len(agents) > 1 else ""
        LOG.warning(
            "%s is merged alone%s: with one agent nothing overlaps, and the merge is that agent, "
            "but for changes within epsilon.",
            taking_part.pop(),
            more,
        )


def _scale(parameters: Any) -> Any:
    return dict(parameters).get("scale", 1.0)
