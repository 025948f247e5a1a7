"""Shows what agents did to their base, and what a merge would keep of it; writes nothing.

The merge is planned as configured, and seen as one by ``ram_plus``. One pass loads every tensor
once and takes everything from it: counts at every ε, energies, angles. A second one tells how
much of λ_t the output dtype keeps, since λ_t is known only when all is counted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack
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
from mergekit_ram.errors import HostError, InputError, ParameterError, RamError, warn, working
from mergekit_ram.inspection import figures
from mergekit_ram.inspection.rounded import RoundedShares
from mergekit_ram.inspection.sample import Sample
from mergekit_ram.inspection.sums import Sums
from mergekit_ram.inspection.walk import COUNTING, COUNTING_AND_SOLVING, Walk
from mergekit_ram.methods import METHODS, RamPlusMerge
from mergekit_ram.models.adapters import adapter_cache
from mergekit_ram.models.groups import agent_places
from mergekit_ram.plan.recipe import misplaced_keys, read_recipe, unknown_parameters
from mergekit_ram.plan.warnings import warn_about_idle_merges
from mergekit_ram.plan.writing import FinalizeMergedModel
from mergekit_ram.record.check import is_record, read_record
from mergekit_ram.record.layers import different, setting
from mergekit_ram.record.merge import MergeRecorder, settings_record, tensor_records
from mergekit_ram.record.schema import OverlapRecord, SampleRecord, Verdict
from mergekit_ram.text import hushed

LOG = logging.getLogger("mergekit_ram")

REMEDY = "Give the YAML file of a merge, or the output folder of one by this package."

SMALL = 2e8
"""Parameters of a model of which ``ram_directions`` takes seconds."""

SAME_PARAMETERS = {"ramplus_tl": ("epsilon", "r", "alpha")}
"""Parameters of mergekit's methods that mean the same in ``ram_plus``."""


@dataclass(frozen=True)
class Plan:
    """A planned merge, seen as one by ``ram_plus``."""

    config: MergeConfiguration
    options: MergeOptions
    recorder: MergeRecorder
    merges: tuple[ExecuteMergeMethodTask, ...]
    """Of every weight of the output, once, by ``ram_plus``."""
    ridges: dict[str, float]
    """Of every weight's merge by ``ram_directions``; empty for another method."""


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
            method, or of models up to 200 million parameters.

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
    with ExitStack() as held:
        plan = _planned(config, options or MergeOptions(), held)
        merges, places = plan.merges, agent_places(plan.merges)
        settings = settings_record(merges).model_copy(
            update={"ridge": setting(plan.ridges.values()) if plan.ridges else None}
        )
        if thresholds:
            thresholds = tuple(sorted({*thresholds, *different(settings.epsilon)}))
        # A sample lacks rows of every matrix.
        solves = sample is None and _solves(plan, directions)
        sums, rounded = Sums(list(places), 1 + len(thresholds), sample is not None), RoundedShares()
        walk = Walk(merges, torch.device(plan.options.device or "cpu"), sample, plan.options.quiet)
        for tensor in walk.first(COUNTING_AND_SOLVING if solves else COUNTING):
            kept = tensor.measure(plan.ridges, plan.recorder.output.sides) if solves else None
            sums.add(tensor, tensor.observe(thresholds), kept)
            rounded.add(tensor)
        statistics = sums.statistics
        if realised:
            for tensor in walk.second():
                sums.add_realised(tensor, tensor.realise(statistics))
        sums.add_unseen()
        tensors = tensor_records(merges, plan.recorder.output.loads, statistics)
        return plan.recorder.composed(
            rounded.findings(),
            kind="inspection",
            merge_method=plan.config.merge_method,
            settings=settings,
            agents=figures.agent_records(sums, places, plan.config.merge_method),
            pairwise=figures.pair_records(sums),
            thresholds=figures.threshold_records(sums, places, thresholds),
            tensors=figures.tensor_changes(sums, tensors),
            layers=figures.layer_changes(sums, tensors),
            sample=sample
            and SampleRecord(fraction=sample.fraction, seed=sample.seed, parameters=sums.seen),
            seconds=round(time.perf_counter() - started, 3),
        )


def _solves(plan: Plan, wanted: bool | None) -> bool:
    """Whether to compute what ``ram_directions`` keeps; it is told where that is left out."""
    if wanted is not None:
        return wanted
    parameters = sum(size.numel for size in plan.recorder.output.sizes.values())
    if plan.ridges or parameters <= SMALL:
        return True
    LOG.warning(
        "what ram_directions would keep is left out: it takes as long as that merge; "
        "--directions (in Python directions=True) asks for it"
    )
    return False


def _checked(epsilons: float | Iterable[float]) -> tuple[float, ...]:
    """Thresholds in ascending order, each once."""
    is_one = isinstance(epsilons, str) or not isinstance(epsilons, Iterable)
    values: list[Any] = [epsilons] if is_one else [*epsilons]  # type: ignore[misc]
    for value in values:
        if isinstance(value, bool | str) or not 0 <= value < math.inf:
            raise ParameterError(f"epsilons must be finite numbers ≥ 0; got {value!r}")
    return tuple(sorted({float(value) for value in values}))


def _planned(
    config: MergeConfiguration | str | Path, options: MergeOptions, held: ExitStack
) -> Plan:
    """Plan a merge once; one by a method that is not ours by ``ram_plus``, after mergekit's plan.

    Raises:
        RamError: the merge would be refused, or has no base to compare the agents with.
    """
    if not install():
        raise HostError(
            "mergekit-ram is switched off by MERGEKIT_RAM_DISABLE in the environment; "
            "unset it to inspect a merge"
        )
    if not isinstance(config, MergeConfiguration):
        recipe = read_recipe(config, REMEDY)
        config = recipe.config
        if config.merge_method in METHOD_NAMES:
            warn(*misplaced_keys(recipe.text, get(config.merge_method).spec))
    method = get(config.merge_method)
    if not (config.base_model or (config.slices and all(s.base_model for s in config.slices))):
        raise InputError(
            f"the configuration ({config.merge_method}) names no `base_model:`, the model that "
            "all agents were trained from. Add it."
        )
    options = held.enter_context(adapter_cache(config.referenced_models(), None, options))
    if config.merge_method in METHOD_NAMES:
        recorder = _recorder(config, options)
    else:
        warn(*unknown_parameters(config, method.spec))
        _rehearse(config, options)
        known = SAME_PARAMETERS.get(config.merge_method, ())
        inspected = _with_parameters(config, known).model_copy(
            update={"merge_method": RamPlusMerge.spec.name}
        )
        # A merge by ram_plus may be idle where one by another method is not.
        with hushed(lambda record: record.funcName != warn_about_idle_merges.__name__):
            recorder = _recorder(inspected, options)
    merges = recorder.counter.merges
    ridges = {
        m.output_weight.name: m.parameters["ridge"] for m in merges if "ridge" in m.parameters
    }
    return Plan(config, options, recorder, tuple(map(_by_ram_plus, merges)), ridges)


def _recorder(config: MergeConfiguration, options: MergeOptions) -> MergeRecorder:
    planned = host.planned_to_disk(config, "", options)
    return next(task.recorder for task in planned if isinstance(task, FinalizeMergedModel))


def _rehearse(config: MergeConfiguration, options: MergeOptions) -> None:
    """Let mergekit plan the merge, so that what it refuses is refused."""
    try:
        host.planned_to_disk(config, "", options)
    except RamError:
        raise
    except Exception as error:  # methods of others refuse in many ways
        reason = " ".join(str(error).split())
        raise InputError(f"mergekit refuses the merge by {config.merge_method}: {reason}") from None


def _with_parameters(node: Any, known: Collection[str]) -> Any:
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


def recommended_recipe(path: Path, verdict: Verdict | None) -> str:
    """The YAML of a merge of the same models by the method of a verdict.

    Parameters stay that both methods have with one meaning.

    Args:
        path: of the configuration that was inspected.
        verdict: on it.

    Raises:
        InputError: the verdict recommends no method.
    """
    if verdict is None or verdict.take is None:
        reason = verdict.lines[0] if verdict else "there is no verdict."
        raise InputError(f"no recipe is written: {reason}")
    config = read_recipe(path, REMEDY).config
    known = {*SAME_PARAMETERS.get(config.merge_method, ())}
    if config.merge_method in METHODS:
        known = _parameters(config.merge_method) & _parameters(verdict.take)
    changed = _with_parameters(config, known).model_copy(update={"merge_method": verdict.take})
    return f"{changed.to_yaml()}\n"


def _parameters(method: str) -> set[str]:
    spec = METHODS[method].spec
    return {parameter.name for parameter in (*spec.shared_parameters, *spec.input_parameters)}


def _by_ram_plus(merge: ExecuteMergeMethodTask) -> ExecuteMergeMethodTask:
    """The same merge by ``ram_plus``, with its defaults for parameters that ours lacks."""
    spec = RamPlusMerge.spec

    def completed(given: Any, known: Iterable[ParameterSpec]) -> ImmutableMap[str, Any]:
        values = dict(given.items())
        return ImmutableMap({p.name: values.get(p.name, p.default) for p in known})

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
