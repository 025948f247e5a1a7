"""Where the plugin enters mergekit's planners; with `execution`, all that touches private names.

:func:`patch` wraps the planners that are loaded when one of our methods is looked up. Every planner
looks its method up before it plans, and at that time its module is complete, whatever the process
imported first.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from mergekit.config import MergeConfiguration
from mergekit.graph import Task
from mergekit.io.tasks import FinalizeModel, SaveTensor
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions

from mergekit_ram.errors import check, working
from mergekit_ram.execution import current_session, generate_card, is_of_hub, is_shared
from mergekit_ram.execution import run_merge as run_merge
from mergekit_ram.execution import run_raw as run_raw
from mergekit_ram.methods import METHODS as METHODS
from mergekit_ram.methods import RamMerge
from mergekit_ram.models.prepare import forget_loaders as forget_loaders
from mergekit_ram.models.prepare import is_tied, prepare, prepared_models
from mergekit_ram.plan import folder, inventory, recipe, tasks, warnings, writing
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.switches import is_replaced, wrap

PLANNER_METHODS = ("_plan", "plan_to_disk", "plan_in_memory")
TASK_FIELDS = frozenset(
    {
        "method_name",
        "gather_tensors",
        "model_order",
        "base_model",
        "output_weight",
        "parameters",
        "input_parameters",
        "dtype",
        "out_dtype",
    }
)


_held: weakref.WeakValueDictionary[tuple[int, str], ExitStack] = weakref.WeakValueDictionary()
"""Locks of plans outside of a session, by thread and folder, as long as their last task lives."""

unknown_method = recipe.unknown_method


def patch() -> None:
    """Make what is loaded of mergekit plan our methods as a whole; a second call is cheap.

    Raises:
        HostError: a part of mergekit is not as this version knows it.
    """
    for name, patch_module in _PATCHES.items():
        if name in sys.modules:
            patch_module(sys.modules[name])


def _patch_planner(module: ModuleType) -> None:
    planner = getattr(module, "MergePlanner", None)
    if is_replaced(planner, "_plan"):
        return
    for name in PLANNER_METHODS:
        check(callable(getattr(planner, name, None)), f"the method MergePlanner.{name}")
    missing = TASK_FIELDS - set(ExecuteMergeMethodTask.model_fields)
    check(not missing, f"the fields {sorted(missing)} of ExecuteMergeMethodTask")
    wrap(planner, "plan_to_disk", _plan_to_disk)
    wrap(planner, "_plan", _plan)


def _patch_merge(module: ModuleType) -> None:
    check(callable(getattr(module, "generate_card", None)), "the function merge.generate_card")
    wrap(module, "generate_card", generate_card)


def _patch_card(module: ModuleType) -> None:
    if callable(getattr(module, "is_hf", None)):
        wrap(module, "is_hf", is_of_hub)


def _patch_raw_planner(module: ModuleType) -> None:
    """``plan_flat_merge`` may be running already, so patch a name that it uses at its end."""
    check(callable(getattr(module, "FinalizeModel", None)), "merge_raw_pytorch.FinalizeModel")
    wrap(module, "FinalizeModel", _finalize_raw)


_PATCHES = {
    "mergekit.plan": _patch_planner,
    "mergekit.merge": _patch_merge,
    "mergekit.card": _patch_card,
    "mergekit.scripts.merge_raw_pytorch": _patch_raw_planner,
}


def find_architecture(
    find: Callable[..., Any], config: MergeConfiguration, options: MergeOptions
) -> Any:
    """The architecture of a merge of ours, after a check of its models' files.

    Args:
        find: mergekit's own search, which is not needed.
        config: of the merge.
        options: of mergekit's commands.

    Raises:
        InputError: the models' files are broken, or do not fit together; an unknown dtype.
    """
    recipe.check_dtypes(config)
    recipe.check_dtype("--lora-merge-dtype ", options.lora_merge_dtype)
    return prepare(config, options).architecture


def _plan(wrapped: Callable[[], None], planner: Any, args: Any, kwargs: Any) -> None:
    """After mergekit's planning, exchange its merges for ours.

    mergekit casts to the output dtype after a method has returned. Our merges are told that
    dtype, so that float32 results are rounded once.
    """
    method = getattr(planner, "_method", None)
    if not isinstance(method, RamMerge):
        return wrapped(*args, **kwargs)
    warnings.say_whose_method(method.spec.name)
    out_config = planner.out_model_config
    prepared = prepared_models(planner.config, planner.options)
    prepared.fit(out_config)
    planner.arch_info = prepared.architecture
    with working("planning the merge"):
        wrapped(*args, **kwargs)
    recipe.warn_about_parameters(planner.config, method.spec)
    merges = [
        task.model_copy(update={"out_dtype": weight.force_dtype or planner.config.out_dtype})
        for weight, task in planner._tensors
    ]
    output = inventory.check_plan(merges, prepared, out_config)
    warnings.warn_about_idle_merges(merges)
    planned = tasks.plan_merges(
        merges,
        output,
        quiet=planner.options.quiet,
        device=tasks.counting_device(planner.options),
        ties_embeddings=is_tied(out_config),
    )
    pairs = zip(planner._tensors, planned.tasks, strict=True)
    planner._tensors = [(weight, task) for (weight, _), task in pairs]
    planner.mergekit_ram_recorder = MergeRecorder(method.spec.name, planned.counter, output)


def _plan_to_disk(
    wrapped: Callable[..., list[Task[Any]]], planner: Any, args: Any, kwargs: Any
) -> list[Task[Any]]:
    """Plan the last task and a tokenizer alone: the last one depends on all the others.

    mergekit's executor looks through a list of all targets after every task.
    """
    planned = wrapped(*args, **kwargs)
    recorder = getattr(planner, "mergekit_ram_recorder", None)
    if recorder is None:
        return planned
    referenced = planner.config.referenced_models()
    inputs = [part.path for model in referenced for part in (model.model, model.lora) if part]
    return [
        _guard(recorder, task, inputs) if isinstance(task, FinalizeModel) else task
        for task in planned
        if not isinstance(task, SaveTensor)
    ]


def _finalize_raw(
    wrapped: Callable[..., FinalizeModel], instance: Any, args: Any, kwargs: Any
) -> Task[Any]:
    """Exchange the merges in the list of save tasks, and empty it: the last task has them all."""
    saves = inventory.listed(kwargs.get("tensor_save_tasks", ()))
    names = {getattr(save.tensor_task, "method_name", None) for save in saves}
    if not names <= METHODS.keys():
        return wrapped(*args, **kwargs)
    merges = [tasks.may_be_lacked(save.tensor_task) for save in saves]
    method = merges[0].method_name
    warnings.say_whose_method(method)
    output = inventory.check_plan(merges)
    warnings.warn_about_idle_merges(merges)
    planned = tasks.plan_merges(merges, output)
    pairs = zip(saves, planned.tasks, strict=True)
    saves[:] = [save.model_copy(update={"tensor_task": merge}) for save, merge in pairs]
    last = wrapped(*args, **kwargs)
    inputs = [os.path.dirname(model.model.path) for model in merges[0].model_order]
    guarded = _guard(MergeRecorder(method, planned.counter, output), last, inputs)
    saves.clear()
    return guarded


def _guard(recorder: MergeRecorder, last: FinalizeModel, inputs: Sequence[str]) -> Task[Any]:
    """Check and lock the output folder before the long passes, and exchange the writing tasks.

    mergekit makes the folder when it writes. Without a session the last task releases it.
    """
    session, out_path = current_session.get(), last.writer_task.out_path
    held = ExitStack() if session is None else session.held
    if session is None:
        # Planned anew by the same thread, which merges one at a time: the earlier plan is given up.
        key = (threading.get_ident(), os.path.realpath(out_path))
        _held.pop(key, held).close()
        _held[key] = held
    if not is_shared.get():
        folder.check_output(out_path, recorder.output.size, inputs)
        held.enter_context(folder.lock_folder(out_path))
    if session is None:
        return writing.guard_writing(last, recorder, held.close)
    session.recorder = recorder
    return writing.guard_writing(last, recorder)
