"""The passes over the tensors of a plan, one large tensor of each model in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
from mergekit.common import ModelReference
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.batches import in_batches
from mergekit_ram.inspection.disk import Disk
from mergekit_ram.inspection.drawn import Directions, DrawnTensor
from mergekit_ram.inspection.rounded import RoundedShares
from mergekit_ram.inspection.sampling import Drawn, Sample
from mergekit_ram.inspection.strata import Stratum
from mergekit_ram.kernels.recipe import Recipe
from mergekit_ram.merges.groups import Tokenizers, load_group, map_tensors
from mergekit_ram.methods import with_rescale
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.progress import progress
from mergekit_ram.tensors import agent_name

KEPT_BYTES = 2**30
"""Of a sample that stays in memory for the second pass; a larger one is read again."""

COUNTING = "Counting overlaps"
COUNTING_AND_SOLVING = "Counting overlaps, solving for directions (--no-directions is faster)"


class Walk:
    """Passes over the tensors of a plan, one large tensor of each model in memory.

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
        self._kept: list[DrawnTensor] = []
        self._disk = Disk()
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
        for batch in in_batches(self._tensors(title), _plain_recipe):
            for tensor, seen in zip(batch.tensors, batch.observe(thresholds), strict=True):
                group = tensor.drawn.group
                yield Stratum(
                    merge=tensor.merge,
                    numel=tensor.numel,
                    agents=tuple(agent_name(entry.id) for entry in group.non_base),
                    models=tuple(cast(ModelReference, entry.id) for entry in tensor.agents),
                    seen=seen,
                    groups=tensor.drawn.groups,
                    directions=None if directions is None else tensor.measured(directions),
                )
                self.rounded.look(group, tensor.settings, tensor.dtype)
                size += tensor.nbytes
                if self._sample is not None and size <= KEPT_BYTES:
                    self._kept.append(tensor)
                else:
                    self._kept.clear()

    def realise(self, strata: Sequence[Stratum], statistics: OverlapStatistics) -> None:
        """Add to every stratum what rounding leaves of λ_t."""
        is_kept = len(self._kept) == len(strata)
        again = self._kept if is_kept else self._tensors("Rounding the output")

        def recipe(tensor: DrawnTensor) -> Recipe:
            settings = with_rescale(tensor.settings, statistics)
            return tensor.recipe(settings, tensor.merge.out_dtype)

        found = (sums for batch in in_batches(again, recipe) for sums in batch.realise())
        for stratum, sums in zip(strata, found, strict=True):
            stratum.realised = sums

    def _tensors(self, title: str) -> Iterator[DrawnTensor]:
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
                drawn = self._sample.draw(loaded.group, self._disk)
            if self._device.type != "cpu":
                drawn = replace(drawn, group=map_tensors(drawn.group, self._moved))
            tensor = DrawnTensor(merge, numel, drawn, loaded.settings, loaded.dtype)
            yield tensor
            read += tensor.nbytes
            rate = read / (time.perf_counter() - started)
            bar.set_postfix_str(f"{rate / 1e6:,.0f} MB/s", refresh=False)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)


def _plain_recipe(tensor: DrawnTensor) -> Recipe:
    """λ is not known yet, and not asked for."""
    plain = {name: value for name, value in tensor.settings.items() if name != "rescale"}
    return tensor.recipe(plain)
