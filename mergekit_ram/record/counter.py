"""Receives the counts of merged tensors; logs every agent's sums when all tensors are counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.models.groups import AgentPlaces, agent_places, factor_of
from mergekit_ram.names import labels
from mergekit_ram.overlap import AgentOverlap, OverlapStatistics, TensorOverlap
from mergekit_ram.record.findings import findings_at_once
from mergekit_ram.record.reuse import RecordedCounts

LOG = logging.getLogger("mergekit_ram")


class OverlapCounter:
    """Receives the counts of one plan, all at once or tensor by tensor.

    Args:
        merges: of every weight of the output, once.
        quiet: log nothing but warnings when the merge is done.
        recorded: counts of an earlier merge or inspection, which are not taken again.
    """

    def __init__(
        self,
        merges: Sequence[ExecuteMergeMethodTask],
        *,
        quiet: bool = False,
        recorded: RecordedCounts | None = None,
    ):
        self.merges = tuple(merges)
        self.quiet = quiet
        self.recorded = recorded
        self.statistics: OverlapStatistics | None = None
        self.lines: list[str] = []
        """What was logged of each agent when all was counted."""
        self._started = time.perf_counter()
        self._counts: dict[str, TensorOverlap | None] = {}
        # The multi-GPU executor merges in several threads.
        self._lock = threading.Lock()

    @property
    def counts_from(self) -> str | None:
        """The file of the recorded counts."""
        return self.recorded.path if self.recorded else None

    @property
    def seconds(self) -> float:
        """Since the plan was made."""
        return time.perf_counter() - self._started

    def add(self, name: str, counts: TensorOverlap | None) -> None:
        """Add the counts of one tensor; None of one that is copied."""
        with self._lock:
            self._counts[name] = counts
            is_last = self.statistics is None and len(self._counts) == len(self.merges)
        if is_last:
            ordered = (self._counts[merge.output_weight.name] for merge in self.merges)
            self.complete(filter(None, ordered))

    def complete(self, counted: Iterable[TensorOverlap]) -> OverlapStatistics:
        """Take the counts of all tensors, in the plan's order, and log them."""
        self.statistics = OverlapStatistics(tensors=tuple(counted))
        places = agent_places(self.merges)
        names = labels([agent.model for agent in self.statistics.agents])
        at_work: list[tuple[AgentOverlap, list[float]]] = []
        for name, agent in zip(names, self.statistics.agents, strict=True):
            working = places_at_work(places[agent.model])
            factors = [factor_of(merge, model, agent) for merge, model in working]
            self.lines.append(_agent_line(name, agent, factors))
            LOG.info("%s", self.lines[-1])
            if factors:
                at_work.append((agent, factors))
        for finding in findings_at_once(at_work):
            LOG.warning("%s", finding.text)
        return self.statistics


def places_at_work(places: AgentPlaces) -> AgentPlaces:
    """The places where the agent takes part, and so has a λ."""
    return [(merge, model) for merge, model in places if merge.input_parameters[model]["weight"]]


def _agent_line(name: str, agent: AgentOverlap, factors: Sequence[float]) -> str:
    """A line on the changes of an agent and the λ of its unique parameters.

    Args:
        name: of the agent, short.
        agent: its counts over the whole model.
        factors: every λ that it has; empty where it takes no part.
    """
    if not factors:
        return f"agent {name}: takes no part, its weight is 0 everywhere"
    low, high = min(factors), max(factors)
    return (
        f"agent {name}: density {100 * agent.density:.2f} %, shared {agent.shared:,}, "
        f"unique {agent.unique:,}, ρ {agent.overlap_unique_ratio:.4g}, "
        f"λ {f'{low:.4f}' if low == high else f'{low:.4f} to {high:.4f}'}"
    )
