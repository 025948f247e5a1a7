"""Where the plugin enters mergekit: the only file that touches its private names.

:func:`patch` wraps the planners that are loaded when one of our methods is looked up. Every planner
looks its method up before it plans, and at that time its module is complete, whatever the process
imported first.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from mergekit.config import MergeConfiguration
from mergekit.graph import Task
from mergekit.io.tasks import FinalizeModel, LoaderCache, SaveTensor
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions

from mergekit_ram.errors import check, working
from mergekit_ram.methods import METHODS as METHODS
from mergekit_ram.methods import RamMerge
from mergekit_ram.models.checkpoints import read_shard
from mergekit_ram.models.prepare import forget_loaders as forget_loaders
from mergekit_ram.models.prepare import is_tied, prepare, prepared_models
from mergekit_ram.plan import base_files, folder, inventory, recipe, tasks, warnings, writing
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.show.card import whole_card
from mergekit_ram.switches import is_replaced, wrap

MERGE_MODULE = "mergekit.merge"
PLANNER_METHODS = ("_plan", "plan_to_disk", "plan_in_memory")
EXECUTORS = ("Executor", "MultiGPUExecutor")
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

Run = Callable[[list[Task[Any]]], Iterator[tuple[Task[Any], Any]]]


@dataclass
class _Session:
    """One run of ``run_merge`` or ``mergekit-pytorch`` on a merge of ours."""

    held: ExitStack
    """Releases the output folder."""
    recorder: MergeRecorder | None = None
    """Of the plan that is written to disk."""


_session: ContextVar[_Session | None] = ContextVar("session", default=None)
_is_shared: ContextVar[bool] = ContextVar("is_shared", default=False)
"""Whether the plan being made is one of several for one folder, which others look after."""

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
    wrap(module, "generate_card", _generate_card)


def _patch_card(module: ModuleType) -> None:
    if callable(getattr(module, "is_hf", None)):
        wrap(module, "is_hf", _is_of_hub)


def _patch_raw_planner(module: ModuleType) -> None:
    """``plan_flat_merge`` may be running already, so patch a name that it uses at its end."""
    check(callable(getattr(module, "FinalizeModel", None)), "merge_raw_pytorch.FinalizeModel")
    wrap(module, "FinalizeModel", _finalize_raw)


_PATCHES = {
    "mergekit.plan": _patch_planner,
    MERGE_MODULE: _patch_merge,
    "mergekit.card": _patch_card,
    "mergekit.scripts.merge_raw_pytorch": _patch_raw_planner,
}


@contextmanager
def _merging() -> Iterator[_Session]:
    """Hold what belongs to one merge until it ends, and raise its failures as one line."""
    with ExitStack() as held, working("the merge"):
        session = _Session(held)
        token = _session.set(session)
        try:
            yield session
        finally:
            _session.reset(token)


def run_merge(
    run: Callable[..., None],
    merge_config: MergeConfiguration,
    out_path: str,
    options: MergeOptions,
    config_source: str | None = None,
) -> None:
    """mergekit's ``run_merge`` on a configuration of ours.

    Raises:
        RamError: the merge is refused or fails.
    """
    with _merging() as session:
        if config_source:
            # mergekit's own object does not have the keys that it does not know.
            recipe.warn_about_places(config_source, METHODS[merge_config.merge_method].spec)
        run(merge_config, out_path, options, config_source)
        if session.recorder is not None:
            base = session.recorder.counter.merges[0].base_model
            base_files.copy_base_files(base, merge_config, out_path, options)


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


def run_raw(command: Callable[[], Any], path: str) -> Any:
    """``mergekit-pytorch`` on a recipe of ours.

    Raises:
        RamError: the recipe is no configuration, or the merge is refused or fails.
    """
    from mergekit.scripts.merge_raw_pytorch import RawPyTorchMergeConfig

    with _merging():
        read = recipe.read_recipe(path, RawPyTorchMergeConfig)
        config, spec = read.config, METHODS[read.config.merge_method].spec
        recipe.check_dtypes(config)
        recipe.warn_about_places(read.data, spec, RawPyTorchMergeConfig)
        recipe.warn_about_parameters(config, spec)
        paths = [config.base_model, *(entry.model for entry in config.models)]
        for weights in filter(None, dict.fromkeys(paths)):
            read_shard(Path(weights), weights.lower().endswith(".safetensors"), weights)
        return command()


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
    planner.mergekit_ram_recorder = MergeRecorder.of(method.spec.name, planned.counter, output)


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
    guarded = _guard(MergeRecorder.of(method, planned.counter, output), last, inputs)
    saves.clear()
    return guarded


def _guard(recorder: MergeRecorder, last: FinalizeModel, inputs: Sequence[str]) -> Task[Any]:
    """Check and lock the output folder before the long passes, and exchange the writing tasks.

    mergekit makes the folder when it writes. Without a session the last task releases it.
    """
    session, out_path = _session.get(), last.writer_task.out_path
    held = ExitStack() if session is None else session.held
    if session is None:
        # Planned anew by the same thread, which merges one at a time: the earlier plan is given up.
        key = (threading.get_ident(), os.path.realpath(out_path))
        _held.pop(key, held).close()
        _held[key] = held
    if not _is_shared.get():
        folder.check_output(out_path, recorder.output.size, inputs)
        held.enter_context(folder.lock_folder(out_path))
    if session is None:
        return writing.guard_writing(last, recorder, held.close)
    session.recorder = recorder
    return writing.guard_writing(last, recorder)


def _generate_card(wrapped: Callable[..., str], instance: Any, args: Any, kwargs: Any) -> str:
    """Add our section to mergekit's model card of a merge of ours."""
    session = _session.get()
    if session is None or session.recorder is None:
        return wrapped(*args, **kwargs)
    return whole_card(partial(wrapped, *args, **kwargs), session.recorder.record)


def _is_of_hub(wrapped: Callable[[str], bool], instance: Any, args: Any, kwargs: Any) -> bool:
    """Let cards of our merges ask no hub for a folder of this machine, which fails offline."""
    path = kwargs.get("path", args[0] if args else "")
    return False if _session.get() and os.path.exists(path) else wrapped(*args, **kwargs)


def plan_weights(config: MergeConfiguration, options: MergeOptions) -> MergeRecorder:
    """Plan what ``mergekit-yaml`` would merge by a method of ours, without merging it.

    Args:
        config: brought into mergekit's normal form.
        options: of mergekit's commands.

    Returns:
        The plan's recorder, which knows its merges, models and output dtypes.

    Raises:
        RamError: models, parameters or mergekit are not as they have to be.
    """
    recorder: MergeRecorder = rehearse(config, options).mergekit_ram_recorder
    return recorder


def rehearse(config: MergeConfiguration, options: MergeOptions) -> Any:
    """Let mergekit plan a merge by any method, as far as the first weight.

    Returns:
        The planner.

    Raises:
        RamError: models, parameters or mergekit are not as they have to be.
    """
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


@contextmanager
def executed_by(run: Run) -> Iterator[None]:
    """Let ``run_merge`` hand the tasks of its plan to ``run`` in place of its executors.

    mergekit reads the configuration, plans, and writes everything but the weights. The plan
    neither locks its output folder nor asks for room in it.

    Args:
        run: gives back the tasks whose values ``run_merge`` asks for, with their values.

    Raises:
        HostError: mergekit's executors are not where they should be.
    """
    module: Any = importlib.import_module(MERGE_MODULE)

    class Handed:
        def __init__(self, targets: list[Task[Any]], **_: Any):
            self._targets = targets

        def run(self, **_: Any) -> Iterator[tuple[Task[Any], Any]]:
            return run(self._targets)

    before = {name: getattr(module, name, None) for name in EXECUTORS}
    for name, executor in before.items():
        check(callable(executor), f"the class mergekit.merge.{name}")
        setattr(module, name, Handed)
    token = _is_shared.set(True)
    try:
        yield
    finally:
        _is_shared.reset(token)
        for name, executor in before.items():
            setattr(module, name, executor)


class _PlanTaken(BaseException):
    """Leaves ``run_merge`` with its plan; no failure, which callers in between would report."""


def planned_to_disk(
    config: MergeConfiguration, out_path: str, options: MergeOptions, source: str
) -> list[Task[Any]]:
    """The tasks that ``run_merge`` would execute, none of them executed.

    Args:
        config: brought into mergekit's normal form.
        out_path: folder of the merged model.
        options: of mergekit's commands.
        source: the configuration's text.
    """
    taken: list[Task[Any]] = []

    def take(targets: list[Task[Any]]) -> Iterator[tuple[Task[Any], Any]]:
        taken.extend(targets)
        raise _PlanTaken

    with executed_by(take), suppress(_PlanTaken):
        importlib.import_module(MERGE_MODULE).run_merge(config, out_path, options, source)
    return taken
