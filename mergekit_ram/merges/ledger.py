"""The counts of one plan, wherever they come from, and what is said of them once complete."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.merges.groups import AgentPlaces, agent_places, factor_of
from mergekit_ram.names import labels
from mergekit_ram.overlap import (
    LARGE_RESCALE,
    LARGE_RESCALE_ADVICE,
    SUSPICIOUS_DENSITY,
    AgentOverlap,
    OverlapStatistics,
    TensorOverlap,
)

LOG = logging.getLogger("mergekit_ram")


class Ledger:
    """Takes the counts of a plan, all at once from a counting pass or tensor by tensor.

    Args:
        merges: of every weight of the output, once.
        quiet: whoever merges wants to hear of trouble alone.
        counts_from: the record that the counts are taken from, if there is one.
    """

    def __init__(
        self,
        merges: Sequence[ExecuteMergeMethodTask],
        *,
        quiet: bool = False,
        counts_from: str | None = None,
    ):
        self.quiet = quiet
        self.merges = tuple(merges)
        self.counts_from = counts_from
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
        agents, places = self.statistics.agents, agent_places(self.merges)
        for name, agent in zip(labels([agent.model for agent in agents]), agents, strict=True):
            _log(name, agent, places[agent.model])
        return self.statistics


class _Changes(Protocol):
    """What an agent changed, as counted or as recorded."""

    @property
    def density(self) -> float: ...
    @property
    def shared(self) -> int: ...
    @property
    def unique(self) -> int: ...
    @property
    def overlap_unique_ratio(self) -> float | None: ...


def described(name: str, agent: _Changes, factors: Collection[float]) -> str:
    """A line on what an agent changed and the λ_t that its unique parameters get.

    Args:
        name: of the agent, short.
        agent: its counts over the whole model.
        factors: its λ_t; none where it takes no part.
    """
    if not factors:
        return f"agent {name}: takes no part, its weight is 0 everywhere"
    low, high = min(factors), max(factors)
    ratio = agent.overlap_unique_ratio
    return (
        f"agent {name}: density {100 * agent.density:.2f} %, shared {agent.shared:,}, "
        f"unique {agent.unique:,}, ρ {math.inf if ratio is None else ratio:.4g}, "
        f"λ {f'{low:.4f}' if low == high else f'{low:.4f} to {high:.4f}'}"
    )


def _log(name: str, agent: AgentOverlap, places: AgentPlaces) -> None:
    """The agent's line, and warnings."""
    factors = {
        factor_of(merge, model, agent)
        for merge, model in places
        if merge.input_parameters[model]["weight"] != 0
    }
    LOG.info("%s", described(name, agent, factors))
    if factors:
        _warn(agent, max(factors))


def _warn(agent: AgentOverlap, factor: float) -> None:
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
    if agent.active and factor > LARGE_RESCALE:
        LOG.warning("agent %s: λ is %.4g: %s", agent.model, factor, LARGE_RESCALE_ADVICE)
