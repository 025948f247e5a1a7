"""The merge that is inspected: planned once as configured, and seen as one by ``ram_plus``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergekit.common import ImmutableMap
from mergekit.config import MergeConfiguration
from mergekit.merge_methods import get
from mergekit.merge_methods.base import ParameterSpec
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions
from pydantic import BaseModel

from mergekit_ram import host
from mergekit_ram.autoload import METHOD_NAMES
from mergekit_ram.errors import InputError, RamError
from mergekit_ram.kernels.solutions import fewest_operations
from mergekit_ram.methods import RamPlusMerge
from mergekit_ram.models.groups import agents_of
from mergekit_ram.models.transformers_layout import Sides
from mergekit_ram.plan.inventory import Inventory
from mergekit_ram.plan.recipe import read_recipe, warn_about_parameters, warn_about_places
from mergekit_ram.plan.warnings import warn_about_idle_merges
from mergekit_ram.plan.writing import FinalizeMergedModel
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.tensors import default_layout
from mergekit_ram.text import hushed

REMEDY = "Give the YAML file of a merge, or the output folder of one by ram or ram_plus."

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
    ridges: Counter[float]
    """Bytes of the output by the ridge that holds for them; empty for another method."""


def read_config(path: str | Path) -> MergeConfiguration:
    """A configuration of any merge method."""
    recipe = read_recipe(path, REMEDY)
    if recipe.config.merge_method in METHOD_NAMES:
        warn_about_places(recipe.text, get(recipe.config.merge_method).spec)
    return recipe.config


def plan_inspection(config: MergeConfiguration, options: MergeOptions) -> Plan:
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
        recorder = _recorder(config, options)
    else:
        warn_about_parameters(config, method.spec)
        _rehearse(config, options)
        known = SAME_PARAMETERS.get(config.merge_method, ())
        inspected = _with_parameters(config, known).model_copy(
            update={"merge_method": RamPlusMerge.spec.name}
        )
        # A merge by ram_plus may be idle where one by another method is not.
        with hushed(lambda record: record.funcName != warn_about_idle_merges.__name__):
            recorder = _recorder(inspected, options)
    ridges: Counter[float] = Counter()
    for merge in recorder.counter.merges:
        size = recorder.output.sizes.get(merge.output_weight.name)
        if "ridge" in merge.parameters:
            ridges[merge.parameters["ridge"]] += size.written if size else 0
    return Plan(
        config, options, recorder, tuple(map(_by_ram_plus, recorder.counter.merges)), ridges
    )


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


def operations(plan: Plan, layouts: Sides) -> float:
    """Operations of a merge by ``ram_directions``, known from shapes before anything is read."""
    inventory, total = Inventory(), 0.0
    for merge in plan.merges:
        count, name = len(agents_of(merge)), merge.output_weight.name
        loads = plan.recorder.output.loads.get(name, ())
        headers = (inventory.header(load, name) for load in loads)
        header = next((found for found in headers if found is not None), None)
        if header is None or count < 2:
            continue
        tensor = header.as_meta()
        layout = layouts.find(name) or default_layout(name, header.shape)
        if layout.holds_matrices(tensor):
            matrices = layout.matrices(tensor)
            total += math.fsum(fewest_operations(count, *matrix.shape) for matrix in matrices)
    return total
