"""The passes over the tensors of a plan, with one tensor of every model in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from mergekit.common import dtype_from_name
from mergekit.merge_methods.base import TensorEntry
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.sample import Rows, Sample
from mergekit_ram.kernels import energies, plain
from mergekit_ram.kernels.directions import RIDGE, DirectionSums, measure
from mergekit_ram.kernels.energies import Array, Observed
from mergekit_ram.methods import with_rescale
from mergekit_ram.models.groups import Tokenizers, load_group, map_tensors
from mergekit_ram.models.transformers_layout import Sides
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.progress import progress
from mergekit_ram.tensors import (
    agents_at_work,
    base_of,
    check_values,
    default_layout,
    named_errors,
    recipe_of,
)

KEPT_BYTES = 2**30
"""Size of a sample that is kept in memory for the second pass; a larger one is read again."""

COUNTING = "Counting overlaps"
COUNTING_AND_SOLVING = "Counting overlaps, solving for directions (--no-directions is faster)"
ROUNDING = "Rounding the output"


@dataclass(frozen=True)
class SampledTensor:
    """One tensor of all models, whole or a sample of its rows, with its parameters."""

    merge: ExecuteMergeMethodTask
    numel: int
    """Of the whole tensor."""
    rows: Rows
    settings: dict[str, Any]
    dtype: torch.dtype | None
    """The inputs are rounded to it first."""

    @property
    def nbytes(self) -> int:
        return sum(entry.tensor.nbytes for entry in self.rows.group.entries)

    @cached_property
    def agents(self) -> list[TensorEntry]:
        """The agents that take part, of checked dtypes."""
        agents = agents_at_work(self.rows.group, self.settings)
        check_values(self.rows.group, agents)
        return agents

    def observe(self, thresholds: Sequence[float]) -> Observed:
        """Everything but ``realised_rescale``, at the merge's ε and further ones."""
        plain = {name: value for name, value in self.settings.items() if name != "rescale"}
        base, *agents = self._tensors
        with self._named_errors():
            recipe = recipe_of(plain, self.agents, self.dtype, None)
            return energies.observe(
                recipe, base, agents, thresholds=thresholds, numels=self.rows.numels
            )

    def realise(self, statistics: OverlapStatistics) -> Array:
        """How much of λ the rounding of the merged tensor leaves."""
        settings, out_dtype = with_rescale(self.settings, statistics), self.merge.out_dtype
        base, *agents = self._tensors
        with self._named_errors():
            recipe = recipe_of(settings, self.agents, self.dtype, dtype_from_name(out_dtype))
            return energies.realise(recipe, base, agents, numels=self.rows.numels)

    def measure(self, ridges: Mapping[str, float], sides: Sides | None) -> DirectionSums:
        """How much ``ram_directions`` would keep of the whole tensor.

        Args:
            ridges: by tensor; the default where there is none.
            sides: of the model's matrices; None where they are unknown.
        """
        settings, agents = self.settings, self.agents
        name = self.merge.output_weight.name
        base, *tensors = self._tensors
        with self._named_errors():
            return measure(
                base,
                tensors,
                epsilon=settings["epsilon"],
                ridge=ridges.get(name, RIDGE),
                weight=settings["weight"].values_for(agents) if agents else (),
                scale=settings["scale"],
                layout=(sides and sides.find(name)) or default_layout(name, base.shape),
                dtype=self.dtype,
            )

    @property
    def _tensors(self) -> list[torch.Tensor]:
        tensors = [base_of(self.rows.group).tensor, *(agent.tensor for agent in self.agents)]
        # Nothing is observed where nobody changed anything, whatever it holds.
        return [torch.zeros_like(t) for t in tensors] if plain.are_same(tensors) else tensors

    def _named_errors(self) -> AbstractContextManager[None]:
        group = self.rows.group
        return named_errors(group, [base_of(group), *self.agents])


class Walk:
    """One pass over the tensors of a plan, and a second one over the same rows.

    Args:
        merges: of every weight of the output, once.
        device: to compute on.
        sample: of the rows; by default tensors are read whole.
        quiet: no progress bar.
    """

    def __init__(
        self,
        merges: Sequence[ExecuteMergeMethodTask],
        device: torch.device,
        sample: Sample | None,
        quiet: bool,
    ):
        self._merges, self._device = merges, device
        self._sample, self._quiet = sample, quiet
        self._kept: list[SampledTensor] | None = None if sample is None else []

    def first(self, title: str) -> Iterator[SampledTensor]:
        """Load the tensors, and keep a sample that is small enough for the second pass."""
        size = 0
        for tensor in self._load(title):
            yield tensor
            size += tensor.nbytes
            if self._kept is not None and size <= KEPT_BYTES:
                self._kept.append(tensor)
            else:
                self._kept = None

    def second(self) -> Iterator[SampledTensor]:
        """The same tensors again, after the first pass."""
        return self._load(ROUNDING) if self._kept is None else iter(self._kept)

    def _load(self, title: str) -> Iterator[SampledTensor]:
        tokenizers: Tokenizers = {}
        started, read = time.perf_counter(), 0
        bar = progress(self._merges, title, unit="tensor", quiet=self._quiet)
        for merge in bar:
            # A sample is drawn before anything is moved to another device.
            loaded = load_group(merge, tokenizers, torch.device("cpu"))
            if loaded is None:
                continue
            numel = loaded.group.entries[0].tensor.numel()
            rows = self._sample.draw(loaded.group) if self._sample else Rows.whole(loaded.group)
            if self._device.type != "cpu":
                rows = replace(rows, group=map_tensors(rows.group, self._moved))
            tensor = SampledTensor(merge, numel, rows, loaded.settings, loaded.dtype)
            yield tensor
            read += tensor.nbytes
            rate = read / (time.perf_counter() - started)
            bar.set_postfix_str(f"{rate / 1e6:,.0f} MB/s", refresh=False)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)
