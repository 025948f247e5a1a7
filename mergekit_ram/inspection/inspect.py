"""Looks at what agents did to their base, and at what a merge would keep of it; writes nothing.

One pass loads every tensor once and takes everything from it: counts at every ε, energies,
angles. A second one tells how much of λ_t the output dtype keeps, since λ_t is known only when
all is counted.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from mergekit.config import MergeConfiguration
from mergekit.options import MergeOptions

from mergekit_ram import host
from mergekit_ram.autoload import install
from mergekit_ram.directions import RamDirectionsMerge
from mergekit_ram.errors import HostError, InputError, ParameterError, working
from mergekit_ram.hush import hushed
from mergekit_ram.inspection.configuration import read_config
from mergekit_ram.inspection.cost import LITTLE, operations
from mergekit_ram.inspection.drawn import Directions
from mergekit_ram.inspection.rehearsal import plan_as_ram_plus
from mergekit_ram.inspection.sampling import Sample
from mergekit_ram.inspection.strata import Stratum
from mergekit_ram.inspection.summary import Summary
from mergekit_ram.inspection.walk import Walk
from mergekit_ram.kernels.merge_directions import RIDGE
from mergekit_ram.merges.notes import Note, tell
from mergekit_ram.models.transformers_layout import sides_of_model
from mergekit_ram.record.build import base_names, setting, settings_record, versions
from mergekit_ram.record.findings import findings_of, noted
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.record.schema import OverlapRecord, SampleRecord, Setting, read_record
from mergekit_ram.record.source import is_record

LOG = logging.getLogger("mergekit_ram")


@working("the inspection")
def inspect(
    config: MergeConfiguration | str | Path,
    options: MergeOptions | None = None,
    *,
    epsilons: float | Iterable[float] = (),
    sample: Sample | float | None = None,
    realised: bool = True,
    directions: bool | None = None,
) -> OverlapRecord:
    """Inspect the merge that a configuration describes, as if by ``ram_plus``.

    What the merge would warn of is logged, and what it would refuse is refused.

    Args:
        config: of any method, or the YAML file that holds it; of a method that is not ours, base
            and models alone are taken. For a record's file, or a folder with one, that record is
            read again.
        options: of mergekit's commands.
        epsilons: further thresholds to count at, in the same pass; the merge's own is added.
        sample: look at this share of the rows, between 0 and 1; every figure is then an estimate.
        realised: read the models a second time for ``realised_rescale``.
        directions: reckon what ``ram_directions`` would keep, which takes as long as that merge;
            never of a sample, which lacks rows of every matrix. By default where that is the
            method, or takes little time: up to some 100M parameters.

    Raises:
        RamError: the models do not fit together, or cannot be merged.
        ParameterError: a threshold or share out of range.
    """
    started = time.perf_counter()
    sample, thresholds = _as_sample(sample), _as_thresholds(epsilons)
    if not isinstance(config, MergeConfiguration) and is_record(Path(config)):
        return _read_again(config, sample, thresholds)
    options = options or MergeOptions()
    if not install():
        raise HostError(
            "mergekit-ram is switched off by MERGEKIT_RAM_DISABLE in the environment; "
            "unset it to inspect a merge"
        )
    if not isinstance(config, MergeConfiguration):
        config = read_config(config)
    return _looked_at(config, options, thresholds, sample, (realised, directions), started)


def _looked_at(
    config: MergeConfiguration,
    options: MergeOptions,
    thresholds: tuple[float, ...],
    sample: Sample | None,
    wanted: tuple[bool, bool | None],
    started: float,
) -> OverlapRecord:
    realised, directions = wanted
    plan = plan_as_ram_plus(config, options)
    merges = plan.ledger.merges
    ridges = _ridges(config, options)
    settings = settings_record(merges).model_copy(
        update={"ridge": setting(ridges) if ridges else None}
    )
    if thresholds:
        thresholds = tuple(sorted({*thresholds, *_values(settings.epsilon)}))
    walk = Walk(merges, torch.device(options.device or "cpu"), sample, options.quiet)
    # A sample lacks rows of every matrix.
    measured = _directions(ridges, plan, directions) if sample is None else None
    notes = [] if measured is None else [*_on_ridges(ridges, measured)]
    tell(notes)
    strata = list(walk.observe(thresholds, measured))
    summary = Summary(merges, plan.loads, strata, thresholds, sample, config.merge_method)
    if realised:
        walk.realise(strata, summary.statistics)
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
    found = (*noted((*plan.notes, *notes)), *walk.rounded.findings(), *findings_of(record))
    return record.model_copy(update={"findings": found})


def _ridges(config: MergeConfiguration, options: MergeOptions) -> Counter[float]:
    """Bytes of the output by the ridge that holds for them; of another method there is none.

    A setting may be text, a list, filters, or of single slices: what it is for a tensor only
    mergekit's own planning of the merge tells.
    """
    if config.merge_method != RamDirectionsMerge.spec.name:
        return Counter()
    # All that there is to say of this plan has been said.
    with hushed():
        plan = host.plan_weights(config, options)
    found: Counter[float] = Counter()
    for merge in plan.ledger.merges:
        size = plan.sizes.get(merge.output_weight.name)
        found[merge.parameters["ridge"]] += 0 if size is None else size.written
    return found


def _on_ridges(ridges: Counter[float], used: Directions) -> Iterator[Note]:
    if len(ridges) > 1:
        yield Note(
            "ridge-by-tensor",
            f"ridge differs by tensor ({', '.join(f'{ridge:g}' for ridge in sorted(ridges))}): "
            f"what ram_directions keeps is reckoned with {used.ridge:g} everywhere, that of most "
            "of the output; the merge takes each tensor's own",
        )


def _directions(
    ridges: Counter[float], plan: MergeRecorder, wanted: bool | None
) -> Directions | None:
    """How ``ram_directions`` would merge these models; None where that is not to be looked at.

    Args:
        ridges: of the merge, if it is one by ``ram_directions``; else the default is taken.
        plan: of the merge.
        wanted: None where nobody said; what is left out then is told.
    """
    if wanted is False:
        return None
    merges = plan.ledger.merges
    ridge = ridges.most_common(1)[0][0] if ridges else RIDGE
    base = next((merge.base_model for merge in merges if merge.base_model), None)
    found = Directions(ridge, sides_of_model(base))
    if wanted or ridges:
        return found
    needed = operations(merges, plan.loads, found.layouts)
    if needed <= LITTLE:
        return found
    LOG.warning(
        "what ram_directions would keep is left out: it takes %.1f TFLOP, as long as that "
        "merge; --directions (in Python directions=True) asks for it",
        needed / 1e12,
    )
    return None


def _as_sample(share: Sample | float | None) -> Sample | None:
    return share if share is None or isinstance(share, Sample) else Sample(share)


def _as_thresholds(epsilons: float | Iterable[float]) -> tuple[float, ...]:
    is_one = isinstance(epsilons, str) or not isinstance(epsilons, Iterable)
    values: list[Any] = [epsilons] if is_one else [*epsilons]  # type: ignore[misc]
    for value in values:
        if isinstance(value, bool | str) or not 0 <= value < math.inf:
            raise ParameterError(f"epsilons must be finite numbers ≥ 0; got {value!r}")
    return tuple(sorted({float(value) for value in values}))


def _read_again(
    source: str | Path, sample: Sample | None, thresholds: tuple[float, ...]
) -> OverlapRecord:
    if sample is not None or thresholds:
        raise InputError(
            f"{source} is a record: epsilons and sample are of models, and it has none. Give the "
            "YAML file."
        )
    return read_record(source)


def _values(setting: Setting) -> tuple[float, ...]:
    return setting if isinstance(setting, tuple) else (setting,)


def _sample_record(sample: Sample | None, strata: Sequence[Stratum]) -> SampleRecord | None:
    if sample is None:
        return None
    seen = sum(sum(stratum.seen.numels) for stratum in strata)
    return SampleRecord(fraction=sample.fraction, seed=sample.seed, parameters=seen)
