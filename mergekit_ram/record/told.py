"""What a merge says of itself when it is done, to those who did not ask for its log too."""

from __future__ import annotations

import logging

from mergekit_ram.names import labels
from mergekit_ram.record.counter import agent_line
from mergekit_ram.record.schema import OverlapRecord

LOG = logging.getLogger("mergekit_ram")
DONE = logging.getLogger("mergekit_ram.merge")
DONE.setLevel(logging.INFO)
"""Heard wherever warnings are: mergekit's commands show no more than these without ``-v``."""

WARNED_OF = frozenset({"equals-base", "dense-agent", "large-rescale"})
"""Findings that were warned of as soon as all was counted."""


def tell_of_merge(record: OverlapRecord) -> None:
    """One line per agent, unless the log had it already, and one per finding."""
    if not logging.getLogger().isEnabledFor(logging.WARNING):
        return
    if not LOG.isEnabledFor(logging.INFO):
        names = labels([agent.model for agent in record.agents])
        for name, agent in zip(names, record.agents, strict=True):
            factors = agent.rescale if isinstance(agent.rescale, tuple) else (agent.rescale,)
            takes_part = agent.weight != 0
            DONE.info("%s", agent_line(name, agent, factors if takes_part else ()))
    for finding in record.findings:
        if finding.code not in WARNED_OF:
            DONE.info("finding: %s", finding.text)
