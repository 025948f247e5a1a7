"""Where the plugin enters mergekit: the only file that touches its private names.

:func:`register` puts our methods into the table of methods when that is first asked, and
:func:`patch_planners` patches the planners that are loaded when one of ours is asked for.
Every planner asks before it plans, and at that time its module is complete, whatever the
process imported first.
"""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mergekit_ram import handover
from mergekit_ram.compatibility import check, check_task_fields, check_version, mismatch
from mergekit_ram.directions import RamDirectionsMerge
from mergekit_ram.methods import RamMerge, RamPlusMerge
from mergekit_ram.patches import PATCHING, put, undo, wrap

if TYPE_CHECKING:
    from mergekit.architecture import ModelArchitecture
    from mergekit.config import MergeConfiguration
    from mergekit.options import MergeOptions

    from mergekit_ram.merges.loads import PlannedOutput
    from mergekit_ram.record.counter import OverlapCounter
    from mergekit_ram.record.merge import MergeRecorder

PLANNER_MODULE = "mergekit.plan"
MERGE_MODULE = "mergekit.merge"
RAW_PLANNER_MODULE = "mergekit.scripts.merge_raw_pytorch"
EXECUTORS = (("mergekit.graph", "Executor"), ("mergekit.multigpu_executor", "MultiGPUExecutor"))
LAST_FUNCTION = "_copy_tagalong_files"
"""Of :data:`MERGE_MODULE`, which ``run_merge`` calls last."""

PLANNER_ATTRIBUTES = ("_plan", "plan_to_disk", "plan_in_memory")


@dataclass(frozen=True)
class _Plan:
    """What the writing of a plan's merges needs to know."""

    method: str
    ledger: OverlapCounter
    output: PlannedOutput

    def recorder(self) -> MergeRecorder:
        """Looks at the models' files; not needed where nothing is written."""
        from mergekit_ram.record.merge import MergeRecorder

        return MergeRecorder.of(self.method, self.ledger, self.output)


_plans: weakref.WeakKeyDictionary[Any, _Plan] = weakref.WeakKeyDictionary()
_recorded: ContextVar[tuple[Any, MergeRecorder] | None] = ContextVar("recorded", default=None)
"""Configuration and recorder of the merge that this thread writes, until its card is made."""


def register(registry: ModuleType) -> None:
    """Put our methods into mergekit's table; a second call changes nothing.

    Raises:
        HostError: mergekit's version or what is found in it is not what this version knows.
    """
    with PATCHING:
        if undo:
            return
        check_version()
        table = getattr(registry, "_METHODS", None)
        if not isinstance(table, dict):
            raise mismatch("the table registry._METHODS")
        for method in (RamMerge(), RamPlusMerge(), RamDirectionsMerge()):
            put(table, method.spec.name, method)


def patch_planners() -> None:
    """Make the planners that are loaded plan our methods as a whole.

    Raises:
        HostError: a planner does not look as this version knows it.
    """
    with PATCHING:
        _patch_planner()
        _patch_raw_planner()
        _patch_card()
        _patch_ends()


def uninstall() -> None:
    """Give mergekit back every name that was replaced, in reverse order."""
    while undo:
        undo.pop()()


def _patch_planner() -> None:
    module = sys.modules.get(PLANNER_MODULE)
    if module is None:
        return
    planner = getattr(module, "MergePlanner", None)
    for name in PLANNER_ATTRIBUTES:
        check(callable(getattr(planner, name, None)), f"the method MergePlanner.{name}")
    check_task_fields()
    wrap(planner, "_plan", _plan)
    wrap(planner, "plan_to_disk", _plan_to_disk)


def _plan(wrapped: Callable[[], None], planner: Any, args: Any, kwargs: Any) -> None:
    """After mergekit's planning, exchange its merges for ours.

    mergekit casts to the output dtype after a method has returned. Our merges are told that
    dtype, so that float32 results are rounded once.
    """
    if not isinstance(getattr(planner, "_method", None), RamMerge):
        return wrapped(*args, **kwargs)
    from mergekit_ram.merges import boundary
    from mergekit_ram.models.prepare import is_tied, prepared_models
    from mergekit_ram.plan import inventory, recipe, tasks, warnings

    warnings.say_whose_method(planner._method.spec.name)
    out_config = planner.out_model_config
    prepared = prepared_models(planner.config, planner.options)
    prepared.fit(out_config)
    planner.arch_info = prepared.architecture
    with boundary.working("planning the merge"):
        wrapped(*args, **kwargs)
    recipe.warn_about_parameters(planner.config, planner._method.spec)
    merges = [
        task.model_copy(update={"out_dtype": weight.force_dtype or planner.config.out_dtype})
        for weight, task in planner._tensors
    ]
    output = inventory.check_plan(merges, prepared, out_config)
    warnings.warn_about_idle_merges(merges)
    has_sides = isinstance(planner._method, RamDirectionsMerge)
    planned = tasks.plan_merges(
        merges,
        output.loads,
        quiet=planner.options.quiet,
        device=tasks.counting_device(planner.options),
        ties_embeddings=is_tied(out_config),
        layouts=prepared.layout.sides if prepared.layout and has_sides else None,
    )
    pairs = zip(planner._tensors, planned.tasks, strict=True)
    planner._tensors = [(weight, task) for (weight, _), task in pairs]
    _plans[planner] = _Plan(planner._method.spec.name, planned.counter, output)


def _plan_to_disk(wrapped: Callable[..., Any], planner: Any, args: Any, kwargs: Any) -> Any:
    """Check the output folder before the long passes; mergekit makes it when it writes."""
    tasks = wrapped(*args, **kwargs)
    plan = _plans.pop(planner, None)
    if plan is None:
        return tasks
    from mergekit_ram.plan import folder, lock, writing

    out_path = args[0] if args else kwargs["out_path"]
    referenced = planner.config.referenced_models()
    inputs = [part.path for model in referenced for part in (model.model, model.lora) if part]
    held = None
    if not handover.is_shared():
        folder.check_output(out_path, plan.output.size, inputs)
        held = lock.lock_folder(out_path)
    recorder = plan.recorder()
    # A thread writes one merge at a time; its card is asked for when it is done.
    _recorded.set((planner.config, recorder))
    return writing.guard_writing(tasks, recorder, held)


def _generate_card(wrapped: Callable[..., str], instance: Any, args: Any, kwargs: Any) -> str:
    """Add our section to mergekit's model card of a merge of ours."""
    from mergekit_ram.show.card import whole_card

    config, recorded = kwargs.get("config", args[0] if args else None), _recorded.get()
    _recorded.set(None)
    if recorded is None or recorded[0] is not config:
        return wrapped(*args, **kwargs)
    return whole_card(partial(wrapped, *args, **kwargs), recorded[1].record)


def find_architecture(
    config: MergeConfiguration, options: MergeOptions | None = None
) -> ModelArchitecture:
    """The architecture of a merge of ours, after a check of its models' files.

    Raises:
        InputError: the models' files are broken, or do not fit together; an unknown dtype.
    """
    from mergekit.options import MergeOptions

    from mergekit_ram.models.prepare import prepare
    from mergekit_ram.plan import recipe

    options = options or MergeOptions()
    recipe.check_dtypes(config)
    recipe.check_dtype("--lora-merge-dtype ", options.lora_merge_dtype)
    return prepare(config, options).architecture


def plan_weights(config: MergeConfiguration, options: MergeOptions) -> MergeRecorder:
    """Plan what ``mergekit-yaml`` would merge, without merging it.

    Args:
        config: of ``ram_plus``; brought into mergekit's normal form.
        options: of mergekit's commands.

    Returns:
        The plan's recorder, which knows its merges, models and output dtypes.

    Raises:
        RamError: models, parameters or mergekit are not as they have to be.
    """
    return _plans.pop(rehearse(config, options)).recorder()


def rehearse(config: MergeConfiguration, options: MergeOptions) -> Any:
    """Let mergekit plan a merge by any method, as far as the first weight.

    Returns:
        The planner.

    Raises:
        RamError: models, parameters or mergekit are not as they have to be.
    """
    from mergekit.io.tasks import LoaderCache

    module: Any = importlib.import_module(MERGE_MODULE)
    check(callable(getattr(module, "_model_out_config", None)), "merge._model_out_config")
    architecture = module.get_architecture_info(config, options)
    LoaderCache().setup(options=options)
    out_config = module._model_out_config(
        config, architecture, trust_remote_code=options.trust_remote_code
    )
    planner = module.MergePlanner(config, architecture, options, out_config)
    planner._plan()
    return planner


def _patch_card() -> None:
    """``run_merge`` writes the card after everything else, and may be running already."""
    module = sys.modules.get(MERGE_MODULE)
    if module is None:
        return
    from mergekit_ram.show.card import stay_here

    if not callable(getattr(module, "generate_card", None)):
        raise mismatch("the function mergekit.merge.generate_card")
    wrap(module, "generate_card", _generate_card)
    stay_here(sys.modules.get("mergekit.card"))


def _patch_ends() -> None:
    """Where a merge ends: a run of tasks that fails, and what ``run_merge`` writes last.

    A lock that is not given back here lasts as long as its tasks do.
    """
    from mergekit_ram.plan import lock, runs

    for module, name in EXECUTORS:
        executor = getattr(sys.modules.get(module), name, None)
        if callable(getattr(executor, "run", None)):
            wrap(executor, "run", runs.run_tasks)
    merge = sys.modules.get(MERGE_MODULE)
    if callable(getattr(merge, LAST_FUNCTION, None)):
        wrap(merge, LAST_FUNCTION, lock.release_afterwards)


def _patch_raw_planner() -> None:
    """``plan_flat_merge`` may be running already, so patch a name that it uses at its end."""
    module = sys.modules.get(RAW_PLANNER_MODULE)
    if not hasattr(module, "plan_flat_merge"):
        return
    check_task_fields()
    if not callable(getattr(module, "FinalizeModel", None)):
        raise mismatch("the task merge_raw_pytorch.FinalizeModel")
    wrap(module, "FinalizeModel", _finalize_raw)


def _finalize_raw(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Exchange the merges in the list of save tasks, which the planner goes on to return."""
    from mergekit_ram.plan import folder, inventory, lock, tasks, warnings, writing

    saves = inventory.listed(kwargs.get("tensor_save_tasks", ()))
    if not any(_is_ours(getattr(save, "tensor_task", None)) for save in saves):
        return wrapped(*args, **kwargs)
    merges = [tasks.may_be_lacked(save.tensor_task) for save in saves]
    warnings.say_whose_method(merges[0].method_name)
    output = inventory.check_raw_plan(merges)
    models = [model.model.path for model in merges[0].model_order]
    out_path = kwargs["writer_task"].out_path
    folder.check_output(out_path, output.size, map(os.path.dirname, models))
    held = lock.lock_folder(out_path)
    warnings.warn_about_idle_merges(merges)
    planned = tasks.plan_merges(merges, output.loads)
    recorder = _Plan(merges[0].method_name, planned.counter, output).recorder()
    saves[:] = writing.guard_writing(
        [
            save.model_copy(update={"tensor_task": merge})
            for save, merge in zip(saves, planned.tasks, strict=True)
        ],
        recorder,
        held,
    )
    (finalize,) = writing.guard_writing([wrapped(*args, **kwargs)], recorder, held, writes_all=True)
    return finalize


def _is_ours(merge: Any) -> bool:
    from mergekit import merge_methods

    name = getattr(merge, "method_name", None)
    return name is not None and isinstance(merge_methods.get(name), RamMerge)
