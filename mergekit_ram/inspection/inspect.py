"""Shows what agents did to their base, and what a merge would keep of it; writes nothing.

One pass loads every tensor once and takes everything from it: counts at every ε, energies,
angles. A second one tells how much of λ_t the output dtype keeps, since λ_t is known only when
all is counted.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from mergekit.config import MergeConfiguration
from mergekit.options import MergeOptions

from mergekit_ram.autoload import install
from mergekit_ram.errors import HostError, InputError, Note, ParameterError, tell, working
from mergekit_ram.inspection import figures
from mergekit_ram.inspection.plan import Plan, operations, plan_inspection, read_config
from mergekit_ram.inspection.rounded import RoundedShares
from mergekit_ram.inspection.sample import Sample
from mergekit_ram.inspection.sums import Sums
from mergekit_ram.inspection.walk import COUNTING, COUNTING_AND_SOLVING, Directions, Walk
from mergekit_ram.kernels.directions import RIDGE
from mergekit_ram.models.groups import agent_places
from mergekit_ram.models.transformers_layout import Sides
from mergekit_ram.record.build import different, setting
from mergekit_ram.record.check import is_record, read_record
from mergekit_ram.record.findings import noted
from mergekit_ram.record.merge import settings_record, tensor_records
from mergekit_ram.record.schema import OverlapRecord, SampleRecord

LOG = logging.getLogger("mergekit_ram")

LITTLE = 1e12
"""Operations that two cores do in about five seconds, for models of some 100M parameters."""


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
        directions: compute what ``ram_directions`` would keep, which takes as long as that merge;
            never of a sample, which lacks rows of every matrix. By default where that is the
            method, or takes little time: up to some 100M parameters.

    Raises:
        RamError: the models do not fit together, or cannot be merged.
        ParameterError: a threshold or share out of range.
    """
    started = time.perf_counter()
    sample = sample if sample is None or isinstance(sample, Sample) else Sample(sample)
    thresholds = _checked(epsilons)
    if not isinstance(config, MergeConfiguration) and is_record(Path(config)):
        if sample is not None or thresholds:
            raise InputError(
                f"{config} is a record: epsilons and sample are of models, and it has none. Give "
                "the YAML file."
            )
        return read_record(config)
    if not install():
        raise HostError(
            "mergekit-ram is switched off by MERGEKIT_RAM_DISABLE in the environment; "
            "unset it to inspect a merge"
        )
    if not isinstance(config, MergeConfiguration):
        config = read_config(config)
    return _inspected(
        plan_inspection(config, options or MergeOptions()),
        thresholds,
        sample,
        realised=realised,
        directions=directions,
        started=started,
    )


def _inspected(
    plan: Plan,
    thresholds: tuple[float, ...],
    sample: Sample | None,
    *,
    realised: bool,
    directions: bool | None,
    started: float,
) -> OverlapRecord:
    merges, recorder, method = plan.merges, plan.recorder, plan.config.merge_method
    ridge = setting(plan.ridges) if plan.ridges else None
    settings = settings_record(merges).model_copy(update={"ridge": ridge})
    if thresholds:
        thresholds = tuple(sorted({*thresholds, *different(settings.epsilon)}))
    # A sample lacks rows of every matrix.
    solving = _directions(plan, directions) if sample is None else None
    notes = [] if solving is None else [*_on_ridges(plan.ridges, solving)]
    tell(notes)
    places = agent_places(merges)
    sums, rounded = Sums(list(places), 1 + len(thresholds), sample is not None), RoundedShares()
    walk = Walk(merges, torch.device(plan.options.device or "cpu"), sample, plan.options.quiet)
    for tensor in walk.first(COUNTING if solving is None else COUNTING_AND_SOLVING):
        kept = None if solving is None else tensor.measure(solving)
        sums.add(tensor, tensor.observe(thresholds), kept)
        rounded.add(tensor.rows.group, tensor.settings, tensor.dtype)
    statistics = sums.statistics
    if realised:
        for tensor in walk.second():
            sums.add_realised(tensor, tensor.realise(statistics))
    sums.add_unseen()
    tensors = tensor_records(merges, recorder.output.loads, statistics)
    return recorder.composed(
        [*noted(notes), *rounded.findings()],
        kind="inspection",
        merge_method=method,
        settings=settings,
        agents=figures.agent_records(sums, places, method),
        pairwise=figures.pair_records(sums),
        thresholds=figures.threshold_records(sums, places, thresholds),
        tensors=figures.tensor_changes(sums, tensors),
        layers=figures.layer_changes(sums, tensors),
        sample=None
        if sample is None
        else SampleRecord(fraction=sample.fraction, seed=sample.seed, parameters=sums.seen),
        seconds=round(time.perf_counter() - started, 3),
    )


def _directions(plan: Plan, wanted: bool | None) -> Directions | None:
    """How ``ram_directions`` would merge these models; None if that is not to be computed.

    Args:
        plan: of the merge; if it is not by ``ram_directions``, the default ridge is taken.
        wanted: None if nobody said; it is then told where they are left out.
    """
    if wanted is False:
        return None
    ridge = plan.ridges.most_common(1)[0][0] if plan.ridges else RIDGE
    found = Directions(ridge, plan.recorder.output.sides or Sides({}))
    if wanted or plan.ridges:
        return found
    needed = operations(plan, found.layouts)
    if needed <= LITTLE:
        return found
    LOG.warning(
        "what ram_directions would keep is left out: it takes %.1f TFLOP, as long as that "
        "merge; --directions (in Python directions=True) asks for it",
        needed / 1e12,
    )
    return None


def _on_ridges(ridges: Counter[float], used: Directions) -> list[Note]:
    if len(ridges) < 2:
        return []
    text = (
        f"ridge differs by tensor ({', '.join(f'{ridge:g}' for ridge in sorted(ridges))}): "
        f"what ram_directions keeps is computed with {used.ridge:g} everywhere, that of most "
        "of the output; the merge takes each tensor's own"
    )
    return [Note("ridge-by-tensor", text)]


def _checked(epsilons: float | Iterable[float]) -> tuple[float, ...]:
    """Thresholds in ascending order, each once."""
    is_one = isinstance(epsilons, str) or not isinstance(epsilons, Iterable)
    values: list[Any] = [epsilons] if is_one else [*epsilons]  # type: ignore[misc]
    for value in values:
        if isinstance(value, bool | str) or not 0 <= value < math.inf:
            raise ParameterError(f"epsilons must be finite numbers ≥ 0; got {value!r}")
    return tuple(sorted({float(value) for value in values}))
