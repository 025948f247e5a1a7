"""The passes over the tensors of a plan, one tensor of each model in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from mergekit.common import dtype_from_name
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.directions import default_layout
from mergekit_ram.inspection.rounded import RoundedShares
from mergekit_ram.inspection.sampling import Drawn, Sample
from mergekit_ram.inspection.strata import Stratum
from mergekit_ram.kernels import direction_sums, energies
from mergekit_ram.kernels.direction_sums import DirectionSums
from mergekit_ram.merges.groups import Tokenizers, load_group, map_tensors
from mergekit_ram.methods import with_rescale
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.plan.layouts import Layouts
from mergekit_ram.progress import progress
from mergekit_ram.tensors import (
    agent_name,
    agents_at_work,
    base_of,
    check_values,
    named_errors,
    recipe_of,
)

T = TypeVar("T")

KEPT_BYTES = 2**30
"""Of a sample that stays in memory for the second pass; a larger one is read again."""

COUNTING = "Counting overlaps"
COUNTING_AND_SOLVING = "Counting overlaps, solving for directions (--no-directions is faster)"


@dataclass(frozen=True)
class Directions:
    """How ``ram_directions`` would merge a model."""

    ridge: float
    layouts: Layouts


@dataclass(frozen=True)
class _Tensor:
    """What is looked at of one tensor, and the parameters that hold for it."""

    merge: ExecuteMergeMethodTask
    numel: int
    """Of the whole tensor."""
    drawn: Drawn
    settings: dict[str, Any]
    dtype: torch.dtype | None

    @property
    def nbytes(self) -> int:
        return sum(entry.tensor.nbytes for entry in self.drawn.group.entries)

    def look(
        self,
        function: Callable[..., T],
        settings: Mapping[str, Any],
        out_dtype: Any = None,
        **arguments: Any,
    ) -> T:
        """Call a function of :mod:`energies`; its errors name models and tensor."""
        group = self.drawn.group
        base, agents = base_of(group), agents_at_work(group, settings)
        check_values(group, agents)
        recipe = recipe_of(settings, agents, self.dtype, dtype_from_name(out_dtype))
        with named_errors(group, [base, *agents]):
            tensors = [agent.tensor for agent in agents]
            return function(recipe, base.tensor, tensors, numels=self.drawn.numels, **arguments)

    def measured(self, directions: Directions) -> DirectionSums:
        """What ``ram_directions`` would keep of the whole tensor."""
        group, settings = self.drawn.group, self.settings
        base, agents = base_of(group), agents_at_work(group, settings)
        name = self.merge.output_weight.name
        with named_errors(group, [base, *agents]):
            return direction_sums.measure(
                base.tensor,
                [agent.tensor for agent in agents],
                epsilon=settings["epsilon"],
                ridge=directions.ridge,
                weight=settings["weight"].values_for(agents) if agents else (),
                scale=settings["scale"],
                layout=directions.layouts.find(name) or default_layout(name, base.tensor.shape),
                dtype=self.dtype,
            )


class Walk:
    """Passes over the tensors of a plan, one tensor of each model in memory.

    Args:
        merges: of every weight of the output, once.
        device: to compute on.
        sample: of the rows to look at; all by default.
        quiet: no progress bar.
    """

    def __init__(
        self,
        merges: Sequence[ExecuteMergeMethodTask],
        device: torch.device,
        sample: Sample | None,
        quiet: bool,
    ):
        self._merges = merges
        self._device = device
        self._sample = sample
        self._quiet = quiet
        self._kept: list[_Tensor] = []
        self.rounded = RoundedShares()

    def observe(
        self, thresholds: Sequence[float], directions: Directions | None = None
    ) -> Iterator[Stratum]:
        """Everything but ``realised_rescale``.

        Args:
            thresholds: further ε to count at.
            directions: how ``ram_directions`` would merge; by default that is not looked at.
        """
        size = 0
        title = COUNTING if directions is None else COUNTING_AND_SOLVING
        for tensor in self._tensors(title):
            group, settings = tensor.drawn.group, tensor.settings
            # λ is not known yet, and not asked for.
            plain = {name: value for name, value in settings.items() if name != "rescale"}
            yield Stratum(
                merge=tensor.merge,
                numel=tensor.numel,
                agents=tuple(agent_name(entry.id) for entry in group.non_base),
                at_work=tuple(agent_name(entry.id) for entry in agents_at_work(group, settings)),
                seen=tensor.look(energies.observe, plain, thresholds=thresholds),
                directions=None if directions is None else tensor.measured(directions),
            )
            self.rounded.look(group, settings, tensor.dtype)
            size += tensor.nbytes
            if self._sample is not None and size <= KEPT_BYTES:
                self._kept.append(tensor)
            else:
                self._kept.clear()

    def realise(self, strata: Sequence[Stratum], statistics: OverlapStatistics) -> None:
        """Add to every stratum what rounding leaves of λ_t."""
        is_kept = len(self._kept) == len(strata)
        again = self._kept if is_kept else self._tensors("Rounding the output")
        for tensor, stratum in zip(again, strata, strict=True):
            settings = with_rescale(tensor.settings, statistics)
            stratum.realised = tensor.look(energies.realise, settings, tensor.merge.out_dtype)

    def _tensors(self, title: str) -> Iterator[_Tensor]:
        tokenizers: Tokenizers = {}
        started, read = time.perf_counter(), 0
        bar = progress(self._merges, title, unit="tensor", quiet=self._quiet)
        for merge in bar:
            # A sample is drawn before anything is moved.
            loaded = load_group(merge, tokenizers, torch.device("cpu"))
            if loaded is None:
                continue
            numel = loaded.group.entries[0].tensor.numel()
            drawn = Drawn.whole(loaded.group)
            if self._sample is not None:
                drawn = self._sample.draw(loaded.group)
            drawn = replace(drawn, group=map_tensors(drawn.group, self._moved))
            tensor = _Tensor(merge, numel, drawn, loaded.settings, loaded.dtype)
            yield tensor
            read += tensor.nbytes
            rate = read / (time.perf_counter() - started)
            bar.set_postfix_str(f"{rate / 1e6:,.0f} MB/s", refresh=False)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)
