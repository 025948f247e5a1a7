"""The counts of one plan, wherever they come from, and what is said of them once complete."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.merges.groups import agents_of, factor_of
from mergekit_ram.overlap import (
    SUSPICIOUS_DENSITY,
    AgentOverlap,
    OverlapStatistics,
    TensorOverlap,
)
from mergekit_ram.tensors import agent_name

LOG = logging.getLogger("mergekit_ram")


class Ledger:
    """Takes the counts of a plan, all at once from a counting pass or tensor by tensor.

    Args:
        merges: of every weight of the output, once.
    """

    def __init__(self, merges: Sequence[ExecuteMergeMethodTask]):
        self.merges = tuple(merges)
        self.statistics: OverlapStatistics | None = None
        self._started = time.perf_counter()
        self._found: dict[str, TensorOverlap | None] = {}
        # The multi-GPU executor merges in several threads.
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Since the plan was made."""
        return time.perf_counter() - self._started

    def add(self, name: str, counts: TensorOverlap | None) -> None:
        """Take one tensor's counts; None where it was copied and there is nothing to count."""
        with self._lock:
            self._found[name] = counts
            if self.statistics is None and len(self._found) == len(self.merges):
                ordered = (self._found[merge.output_weight.name] for merge in self.merges)
                self._complete([found for found in ordered if found is not None])

    def complete(self, counted: Sequence[TensorOverlap]) -> OverlapStatistics:
        """Take the counts of all tensors."""
        with self._lock:
            return self._complete(counted)

    def _complete(self, counted: Sequence[TensorOverlap]) -> OverlapStatistics:
        self.statistics = OverlapStatistics(tensors=tuple(counted))
        for agent in self.statistics.agents:
            _log(agent, self.merges)
        return self.statistics


def _log(agent: AgentOverlap, merges: Sequence[ExecuteMergeMethodTask]) -> None:
    """One line on what an agent changed and the λ_t that its unique parameters get; warnings."""
    factors = {
        factor_of(merge, model, agent)
        for merge in merges
        for model in agents_of(merge)
        if agent_name(model) == agent.model and merge.input_parameters[model]["weight"] != 0
    }
    if not factors:
        LOG.info("agent %s: takes no part, its weight is 0 everywhere", agent.model)
        return
    low, high = min(factors), max(factors)
    LOG.info(
        "agent %s: density %.2f %%, shared %s, unique %s, ρ %.4g, λ %s",
        agent.model,
        100 * agent.density,
        f"{agent.shared:,}",
        f"{agent.unique:,}",
        agent.overlap_unique_ratio,
        f"{low:.4f}" if low == high else f"{low:.4f} to {high:.4f}",
    )
    _warn(agent)


def _warn(agent: AgentOverlap) -> None:
    if agent.active == 0:
        LOG.warning(
            "agent %s equals the base within epsilon everywhere and contributes nothing",
            agent.model,
        )
    elif agent.active > SUSPICIOUS_DENSITY * agent.parameters:
        LOG.warning(
            "agent %s differs from the base in %.1f %% of all parameters: it was not trained "
            "from this base, or not by sparse updates",
            agent.model,
            100 * agent.density,
        )
