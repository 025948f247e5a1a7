"""Whether each agent descends from the base by a sparse update: warnings about those that do not.

A merge that counts everything knows. One by ``ram`` reads the models once, and looks here at no
more of an agent than it takes to be sure that it changed something, and left enough alone: a
small share of a usual agent, all of a suspicious one. What is warned of is exact.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mergekit.merge_methods.base import TensorGroup

from mergekit_ram import kernels
from mergekit_ram.methods import agent_name

LOG = logging.getLogger("mergekit_ram")

SUSPICIOUS_DENSITY = 0.95
"""Share of changed parameters above which an agent is hardly one of this base."""

PIECE = 1 << 20
"""Parameters that are looked at before it is asked again whether that suffices."""


def warn_of(agent: str, active: int, parameters: int) -> None:
    """Warn of an agent that changed nothing, or nearly everything."""
    if active == 0:
        LOG.warning(
            "agent %s equals the base within epsilon everywhere and contributes nothing", agent
        )
    elif active > SUSPICIOUS_DENSITY * parameters:
        LOG.warning(
            "agent %s differs from the base in %.1f %% of all parameters: it was not trained "
            "from this base, or not by sparse updates",
            agent,
            100 * active / parameters,
        )


class DescentWatch:
    """Looks at the tensors of one plan as they are merged, and warns after the last.

    Args:
        tensors: how many tensors will be seen.
        parameters: how many parameters these have together.
    """

    def __init__(self, tensors: int, parameters: int):
        self._tensors_left = tensors
        self._parameters = parameters
        self._active: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        # The multi-GPU executor merges in several threads.
        self._lock = threading.Lock()

    def see(self, group: TensorGroup | None, settings: Mapping[str, Any]) -> None:
        """Take note of one tensor's inputs; of none where there is nothing to merge."""
        with self._lock:
            if group is not None and group.base is not None:
                for entry in group.non_base:
                    if settings["weight"][entry.id] != 0:
                        name = agent_name(entry.id)
                        self._look(name, group.base.tensor, entry.tensor, settings["epsilon"])
            self._tensors_left -= 1
            if self._tensors_left == 0:
                for agent, active in self._active.items():
                    if self._is_open(agent):
                        warn_of(agent, active, self._parameters)

    def _look(self, agent: str, base: torch.Tensor, tensor: torch.Tensor, epsilon: float) -> None:
        self._active.setdefault(agent, 0)
        self._seen.setdefault(agent, 0)
        for base_piece, piece in _pieces(base, tensor):
            if not self._is_open(agent):
                return
            counts = kernels.count(base_piece, [piece], epsilon=epsilon)
            self._active[agent] += sum(counts.overlap_degree[0])
            self._seen[agent] += counts.numel

    def _is_open(self, agent: str) -> bool:
        """Whether the agent may still turn out to have changed nothing, or nearly everything."""
        active = self._active[agent]
        untouched = self._seen[agent] - active
        return active == 0 or untouched < (1 - SUSPICIOUS_DENSITY) * self._parameters


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The tensors cut along their first axis, into pieces of about ``PIECE`` elements."""
    first = tensors[0]
    if first.ndim == 0 or first.numel() <= PIECE:
        yield tensors
        return
    rows = max(1, PIECE * first.shape[0] // first.numel())
    yield from zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)
