"""Looks at what agents did to their base, and at what a merge would keep of it; writes nothing.

One pass loads every tensor once and takes everything from it: counts at every ε, energies,
angles. A second one tells how much of λ_t the output dtype keeps, since λ_t is known only when
all is counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from mergekit.config import MergeConfiguration
from mergekit.options import MergeOptions

from mergekit_ram import host
from mergekit_ram.autoload import install
from mergekit_ram.errors import HostError
from mergekit_ram.inspection.configuration import as_ram_plus
from mergekit_ram.inspection.sampling import Sample
from mergekit_ram.inspection.strata import Stratum
from mergekit_ram.inspection.summary import Summary
from mergekit_ram.inspection.walk import Walk
from mergekit_ram.merges.boundary import working
from mergekit_ram.record.build import base_names, settings_record, versions
from mergekit_ram.record.findings import findings_of, noted
from mergekit_ram.record.schema import OverlapRecord, SampleRecord


@working("the inspection")
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
    plan = host.plan_weights(as_ram_plus(config), options)
    merges = plan.ledger.merges
    walk = Walk(merges, torch.device(options.device or "cpu"), sample, options.quiet)
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
    found = (*noted(plan.notes), *walk.rounded.findings(), *findings_of(record))
    return record.model_copy(update={"findings": found})


def _sample_record(sample: Sample | None, strata: Sequence[Stratum]) -> SampleRecord | None:
    if sample is None:
        return None
    seen = sum(sum(stratum.seen.numels) for stratum in strata)
    return SampleRecord(fraction=sample.fraction, seed=sample.seed, parameters=seen)
