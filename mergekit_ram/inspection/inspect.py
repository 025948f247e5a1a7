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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mergekit.common import ImmutableMap
from mergekit.config import MergeConfiguration
from mergekit.merge_methods import get
from mergekit.merge_methods.base import ParameterSpec
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions
from pydantic import BaseModel

from mergekit_ram import host
from mergekit_ram.autoload import METHOD_NAMES, install
from mergekit_ram.directions import default_layout
from mergekit_ram.errors import HostError, InputError, ParameterError, RamError
from mergekit_ram.hush import hushed
from mergekit_ram.inspection import figures
from mergekit_ram.inspection.rounded import RoundedShares
from mergekit_ram.inspection.sample import Sample
from mergekit_ram.inspection.sums import Sums
from mergekit_ram.inspection.walk import COUNTING, COUNTING_AND_SOLVING, Directions, Walk
from mergekit_ram.kernels.directions import fewest_operations
from mergekit_ram.kernels.merge_directions import RIDGE
from mergekit_ram.merges.boundary import working
from mergekit_ram.merges.groups import agent_places, agents_of
from mergekit_ram.merges.notes import Note, tell
from mergekit_ram.methods import RamPlusMerge
from mergekit_ram.plan import idle
from mergekit_ram.plan.layouts import Layouts, layouts_of_model
from mergekit_ram.plan.misplaced import warn_about_places
from mergekit_ram.plan.misspelt import warn_about_parameters
from mergekit_ram.plan.recipe import read_recipe
from mergekit_ram.plan.uses import Uses
from mergekit_ram.record.build import base_names, setting, settings_record, tensor_records, versions
from mergekit_ram.record.findings import findings_of, noted
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.record.schema import OverlapRecord, SampleRecord, read_record
from mergekit_ram.record.source import is_record

LOG = logging.getLogger("mergekit_ram")

WAY_OUT = "Give the YAML file of a merge, or the output folder of one by ram or ram_plus."

SAME_PARAMETERS = {"ramplus_tl": ("epsilon", "r", "alpha")}
"""Parameters of mergekit's methods that mean the same in ``ram_plus``."""

LITTLE = 1e12
"""Operations that two cores do in about five seconds, for models of some 100M parameters."""


@dataclass(frozen=True)
class Plan:
    """A planned merge, seen as one by ``ram_plus``."""

    config: MergeConfiguration
    options: MergeOptions
    recorder: MergeRecorder
    merges: tuple[ExecuteMergeMethodTask, ...]
    """Of every weight of the output, once, by ``ram_plus``."""
    ridges: Counter[float]
    """Bytes of the output by the ridge that holds for them; empty for another method."""


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
        config = _read(config)
    return _inspected(
        _plan(config, options or MergeOptions()),
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
        own = settings.epsilon if isinstance(settings.epsilon, tuple) else (settings.epsilon,)
        thresholds = tuple(sorted({*thresholds, *own}))
    # A sample lacks rows of every matrix.
    solving = _directions(plan, directions) if sample is None else None
    notes = [] if solving is None else [*_on_ridges(plan.ridges, solving)]
    tell(notes)
    places = agent_places(merges)
    sums, rounded = Sums(places, 1 + len(thresholds), sample is not None), RoundedShares()
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
    tensors = tensor_records(merges, recorder.loads, statistics)
    record = OverlapRecord(
        kind="inspection",
        merge_method=method,
        base=base_names(merges),
        epsilon=settings.epsilon,
        parameters=sums.parameters,
        settings=settings,
        out_dtype=", ".join(recorder.dtypes),
        agents=figures.agent_records(sums, places, method),
        pairwise=figures.pair_records(sums),
        thresholds=figures.threshold_records(sums, places, thresholds),
        tensors=figures.tensor_changes(sums, tensors),
        layers=figures.layer_changes(sums, tensors),
        sample=sample
        and SampleRecord(fraction=sample.fraction, seed=sample.seed, parameters=sums.seen),
        seconds=round(time.perf_counter() - started, 3),
        models=recorder.models,
        versions=versions(),
    )
    found = (*noted((*recorder.notes, *notes)), *rounded.findings(), *findings_of(record))
    return record.model_copy(update={"findings": found})


def _read(path: str | Path) -> MergeConfiguration:
    """A configuration of any merge method."""
    recipe = read_recipe(path, WAY_OUT)
    if recipe.config.merge_method in METHOD_NAMES:
        warn_about_places(recipe.text, get(recipe.config.merge_method).spec)
    return recipe.config


def _plan(config: MergeConfiguration, options: MergeOptions) -> Plan:
    """Plan a merge once; one by a method that is not ours by ``ram_plus``, after mergekit's plan.

    Raises:
        RamError: the merge would be refused, or has no base to compare the agents with.
    """
    method = get(config.merge_method)
    if not (config.base_model or (config.slices and all(s.base_model for s in config.slices))):
        raise InputError(
            f"the configuration ({config.merge_method}) names no `base_model:`, the model that "
            "all agents were trained from. Add it."
        )
    if config.merge_method in METHOD_NAMES:
        recorder = host.plan_weights(config, options)
    else:
        warn_about_parameters(config, method.spec)
        _rehearse(config, options)
        known = SAME_PARAMETERS.get(config.merge_method, ())
        inspected = _with_parameters(config, known).model_copy(
            update={"merge_method": RamPlusMerge.spec.name}
        )
        # A merge by ram_plus may be idle where one by another method is not.
        with hushed(lambda record: record.module != idle.__name__.rpartition(".")[2]):
            recorder = host.plan_weights(inspected, options)
    ridges: Counter[float] = Counter()
    for merge in recorder.ledger.merges:
        size = recorder.sizes.get(merge.output_weight.name)
        if "ridge" in merge.parameters:
            ridges[merge.parameters["ridge"]] += size.written if size else 0
    return Plan(config, options, recorder, tuple(map(_by_ram_plus, recorder.ledger.merges)), ridges)


def _rehearse(config: MergeConfiguration, options: MergeOptions) -> None:
    """Let mergekit plan the merge, so that what it refuses is refused."""
    try:
        host.rehearse(config, options)
    except RamError:
        raise
    except Exception as error:  # methods of others refuse in many ways
        reason = " ".join(str(error).split())
        raise InputError(f"mergekit refuses the merge by {config.merge_method}: {reason}") from None


def _with_parameters(node: Any, known: Sequence[str]) -> Any:
    """A part of a configuration without parameters but these."""
    if isinstance(node, BaseModel):
        parts = {name: _with_parameters(part, known) for name, part in node}
        if parts.get("parameters"):
            kept = {name: value for name, value in parts["parameters"].items() if name in known}
            parts["parameters"] = kept or None
        return node.model_copy(update=parts)
    if isinstance(node, dict):
        return {name: _with_parameters(part, known) for name, part in node.items()}
    return [_with_parameters(part, known) for part in node] if isinstance(node, list) else node


def _by_ram_plus(merge: ExecuteMergeMethodTask) -> ExecuteMergeMethodTask:
    """The same merge by ``ram_plus``, with its defaults for parameters that ours lacks."""
    spec = RamPlusMerge.spec

    def completed(given: Mapping[str, Any], known: Iterable[ParameterSpec]) -> Any:
        given = dict(given.items())
        return ImmutableMap({p.name: given.get(p.name, p.default) for p in known})

    inputs = {
        model: completed(own, spec.input_parameters)
        for model, own in merge.input_parameters.items()
    }
    return merge.model_copy(
        update={
            "method_name": spec.name,
            "parameters": completed(merge.parameters, spec.shared_parameters),
            "input_parameters": ImmutableMap(inputs),
        }
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
    base = next((merge.base_model for merge in plan.merges if merge.base_model), None)
    found = Directions(ridge, layouts_of_model(base))
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


def operations(plan: Plan, layouts: Layouts) -> float:
    """Operations of a merge by ``ram_directions``, known from shapes before anything is read."""
    uses, total = Uses(), 0.0
    for merge in plan.merges:
        count, name = len(agents_of(merge)), merge.output_weight.name
        headers = (uses.header(load, merge) for load in plan.recorder.loads.get(name, ()))
        header = next((found for found in headers if found is not None), None)
        if header is None or count < 2:
            continue
        tensor = header.as_meta()
        layout = layouts.find(name) or default_layout(name, header.shape)
        if layout.holds_matrices(tensor):
            matrices = layout.matrices(tensor)
            total += math.fsum(fewest_operations(count, *matrix.shape) for matrix in matrices)
    return total


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
