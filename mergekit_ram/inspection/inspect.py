"""Looks at what agents did to their base, and at what a merge would keep of it; writes nothing.

One pass loads every tensor once and takes everything from it: counts at every ε, energies,
angles. A second one tells how much of λ_t the output dtype keeps, since λ_t is known only when
all is counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tqdm
import yaml
from mergekit.common import dtype_from_name
from mergekit.config import MergeConfiguration
from mergekit.merge_methods.base import PerInputValues, TensorGroup
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions

from mergekit_ram import host
from mergekit_ram.autoload import METHOD_NAMES, install
from mergekit_ram.errors import HostError, InputError
from mergekit_ram.inspection.sampling import Sample
from mergekit_ram.inspection.summary import Part, Stratum, Summary
from mergekit_ram.kernels import energies
from mergekit_ram.merges.groups import LoadedGroup, Tokenizers, load_group, map_tensors
from mergekit_ram.methods import RamPlusMerge, agent_name, count_group, merge_group, with_rescale
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.record.build import base_names, settings_record, versions
from mergekit_ram.record.findings import findings_of
from mergekit_ram.record.schema import OverlapRecord, SampleRecord

OWN_METHODS = METHOD_NAMES | {"ramplus_tl"}
"""Methods whose parameters mean what ours of the same name mean."""


def read_config(path: Path) -> MergeConfiguration:
    """A configuration of any merge method.

    Raises:
        InputError: the file cannot be read as one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return MergeConfiguration.model_validate(yaml.safe_load(text))
    except (OSError, ValueError, yaml.YAMLError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} cannot be read as a configuration of mergekit: {reason}. Give the YAML file "
            "of a merge, or the output folder of one by ram or ram_plus."
        ) from None


def inspect(
    config: MergeConfiguration,
    options: MergeOptions | None = None,
    *,
    epsilons: Sequence[float] = (),
    sample: Sample | None = None,
    realised: bool = True,
) -> OverlapRecord:
    """Inspect the merge that a configuration describes, as if by ``ram_plus``.

    Args:
        config: of any method; of one that is not ours, base and models alone are taken.
        options: of mergekit's commands.
        epsilons: further thresholds to count at, in the same pass.
        sample: look at a share of the rows; every figure is then an estimate.
        realised: read the models a second time for ``realised_rescale``.

    Raises:
        RamError: the models do not fit together, or cannot be merged.
    """
    started = time.perf_counter()
    options = options or MergeOptions()
    if not install():
        raise HostError(
            "mergekit-ram is switched off by MERGEKIT_RAM_DISABLE in the environment; "
            "unset it to inspect a merge"
        )
    plan = host.plan_weights(_as_ram_plus(config), options)
    merges = plan.ledger.merges
    walk = _Walk(merges, torch.device(options.device or "cpu"), sample, options.quiet)
    strata = list(walk.observe(epsilons))
    summary = Summary(merges, plan.loads, strata, tuple(epsilons), sample, config.merge_method)
    if realised:
        walk.realise(strata, summary.statistics)
    settings = settings_record(merges)
    record = OverlapRecord(
        kind="inspection",
        merge_method=config.merge_method,
        base=base_names(merges),
        epsilon=settings.epsilon,
        parameters=summary.parameters,
        settings=settings,
        out_dtype=", ".join(plan.dtypes),
        agents=summary.agents(),
        pairwise=summary.pairs(),
        thresholds=summary.thresholds(),
        tensors=summary.tensors(),
        layers=summary.layers(),
        sample=_sample_record(sample, strata),
        seconds=round(time.perf_counter() - started, 3),
        models=plan.models,
        versions=versions(),
    )
    return record.model_copy(update={"findings": findings_of(record)})


def _sample_record(sample: Sample | None, strata: Sequence[Stratum]) -> SampleRecord | None:
    if sample is None:
        return None
    seen = sum(part.counts.numel for stratum in strata for part in stratum.parts)
    return SampleRecord(fraction=sample.fraction, seed=sample.seed, parameters=seen)


def _as_ram_plus(config: MergeConfiguration) -> MergeConfiguration:
    """The same models merged by ``ram_plus``, with those parameters that mean the same there."""
    if config.base_model is None and not _slices_name_bases(config):
        raise InputError(
            f"the configuration ({config.merge_method}) names no `base_model:`, the model that "
            "all agents were trained from. Add it."
        )
    # Recorded counts are not what is to be looked at.
    known = {parameter.name for parameter in RamPlusMerge.spec.parameters} - {"statistics"}
    keep = known if config.merge_method in OWN_METHODS else set()
    # By name, since fields left out and fields set to nothing are the same here.
    plain = config.model_dump(exclude_none=True)
    return MergeConfiguration.model_validate(
        _with_parameters(plain, keep) | {"merge_method": "ram_plus"}
    )


def _slices_name_bases(config: MergeConfiguration) -> bool:
    return bool(config.slices) and all(piece.base_model for piece in config.slices or ())


def _with_parameters(node: Any, keep: set[str]) -> Any:
    if isinstance(node, dict):
        return {
            key: {name: kept for name, kept in value.items() if name in keep}
            if key == "parameters" and isinstance(value, dict)
            else _with_parameters(value, keep)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_with_parameters(item, keep) for item in node]
    return node


@dataclass
class _Walk:
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
        bar = tqdm.tqdm(self.merges, desc=title, unit="tensor", disable=self.quiet)
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
    base, agents = _taking_part(group, settings)
    measured = energies.measure(
        base,
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
    base, agents = _taking_part(group, settings)
    ones = PerInputValues([(entry.id, 1.0) for entry in group.non_base])
    merged, plain = (
        merge_group(group, chosen, dtype=dtype, out_dtype=dtype_from_name(out_dtype))
        for chosen in (settings, {**settings, "rescale": ones})
    )
    return energies.realise(
        base,
        [entry.tensor for entry in agents],
        merged,
        plain,
        epsilon=settings["epsilon"],
        dtype=dtype,
    )


def _taking_part(group: TensorGroup, settings: dict[str, Any]) -> tuple[torch.Tensor, list[Any]]:
    assert group.base is not None, "the contract requires a base"
    return group.base.tensor, [e for e in group.non_base if settings["weight"][e.id] != 0]
