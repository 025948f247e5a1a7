"""The passes over the tensors of a plan, one tensor of each model in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mergekit.common import dtype_from_name
from mergekit.merge_methods.base import PerInputValues, TensorGroup
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.inspection.sampling import Sample
from mergekit_ram.inspection.strata import Part, Stratum
from mergekit_ram.kernels import energies
from mergekit_ram.merges.groups import LoadedGroup, Tokenizers, load_group, map_tensors
from mergekit_ram.methods import with_rescale
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.progress import progress
from mergekit_ram.tensors import agent_name, agents_at_work, base_of, count_group, merge_group


@dataclass
class Walk:
    """Passes over the tensors of a plan, one tensor of each model in memory."""

    merges: Sequence[ExecuteMergeMethodTask]
    device: torch.device
    sample: Sample | None
    quiet: bool

    def observe(self, epsilons: Sequence[float]) -> Iterator[Stratum]:
        """Everything but ``realised_rescale``."""
        for merge, loaded, parts in self._parts("Counting overlaps"):
            yield Stratum(
                merge=merge,
                numel=loaded.group.entries[0].tensor.numel(),
                parts=[_observe(part, loaded, epsilons) for part in parts],
            )

    def realise(self, strata: Sequence[Stratum], statistics: OverlapStatistics) -> None:
        """Add to every part what rounding leaves of λ_t."""
        by_name = {stratum.name: stratum for stratum in strata}
        for merge, loaded, parts in self._parts("Rounding the output"):
            settings = with_rescale(loaded.settings, statistics)
            found = by_name[merge.output_weight.name].parts
            for part, group in zip(found, parts, strict=True):
                part.realised = _realise(group, settings, loaded.dtype, merge.out_dtype)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def _parts(
        self, title: str
    ) -> Iterator[tuple[ExecuteMergeMethodTask, LoadedGroup, list[TensorGroup]]]:
        tokenizers: Tokenizers = {}
        started, read = time.perf_counter(), 0
        bar = progress(self.merges, title, unit="tensor", quiet=self.quiet)
        for merge in bar:
            # A sample is drawn before anything is moved.
            loaded = load_group(merge, tokenizers, torch.device("cpu"))
            if loaded is None:
                continue
            parts = [loaded.group] if self.sample is None else self.sample.parts(loaded.group)
            yield merge, loaded, [map_tensors(part, self._moved) for part in parts]
            read += sum(entry.tensor.nbytes for part in parts for entry in part.entries)
            rate = read / (time.perf_counter() - started)
            bar.set_postfix_str(f"{rate / 1e6:,.0f} MB/s", refresh=False)


def _observe(group: TensorGroup, loaded: LoadedGroup, epsilons: Sequence[float]) -> Part:
    settings = loaded.settings
    counts = count_group(group, settings, dtype=loaded.dtype)
    at = [
        count_group(group, {**settings, "epsilon": epsilon}, dtype=loaded.dtype)
        for epsilon in epsilons
    ]
    agents = agents_at_work(group, settings)
    measured = energies.measure(
        base_of(group).tensor,
        [entry.tensor for entry in agents],
        epsilon=settings["epsilon"],
        weight=settings["weight"].values_for(agents) if agents else (),
        scale=settings["scale"],
        overlap_power=settings["overlap_power"],
        dtype=loaded.dtype,
    )
    return Part(counts, tuple(at), [agent_name(entry.id) for entry in agents], measured)


def _realise(
    group: TensorGroup, settings: dict[str, Any], dtype: torch.dtype | None, out_dtype: Any
) -> energies.Realised:
    ones = PerInputValues([(entry.id, 1.0) for entry in group.non_base])
    merged, plain = (
        merge_group(group, chosen, dtype=dtype, out_dtype=dtype_from_name(out_dtype))
        for chosen in (settings, {**settings, "rescale": ones})
    )
    return energies.realise(
        base_of(group).tensor,
        [entry.tensor for entry in agents_at_work(group, settings)],
        merged,
        plain,
        epsilon=settings["epsilon"],
        dtype=dtype,
    )
