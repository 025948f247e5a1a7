"""Where the plugin enters mergekit: its planners, its run of a merge, and all its private names.

:func:`patch` wraps what is loaded when one of our methods is looked up. Every planner looks its
method up before it plans, and at that time its module is complete, whatever the process imported
first.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import wrapt
from mergekit.config import MergeConfiguration
from mergekit.graph import Task
from mergekit.io.tasks import FinalizeModel, SaveTensor
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions

from mergekit_ram.errors import mismatch, warn, working
from mergekit_ram.methods import METHODS, RamMerge
from mergekit_ram.models.adapters import adapter_cache
from mergekit_ram.models.checkpoints import read_shard
from mergekit_ram.models.prepare import forget_loaders as forget_loaders
from mergekit_ram.models.prepare import is_tied, prepare, prepared_models
from mergekit_ram.plan import folder, inventory, recipe, tasks, writing
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.show.card import whole_card
from mergekit_ram.switches import wrap

TASK_FIELDS = {"base_model", "gather_tensors", "input_parameters", "model_order", "output_weight"}

Run = Callable[[list[Task[Any]]], Iterator[tuple[Task[Any], Any]]]


@dataclass
class Session:
    """One run of ``run_merge`` on a merge of ours."""

    held: ExitStack = field(default_factory=ExitStack)
    """Releases the output folder."""
    recorder: MergeRecorder | None = None
    """Of the plan that is written to disk."""


_session: ContextVar[Session | None] = ContextVar("session", default=None)
_run: ContextVar[Run | None] = ContextVar("run", default=None)
"""Executes the plan being made in place of mergekit, and looks after its output folder."""


def patch() -> None:
    """Make what is loaded of mergekit plan our methods as a whole; a second call is cheap.

    Raises:
        HostError: a part of mergekit is not as this version knows it.
    """
    missing = TASK_FIELDS - set(ExecuteMergeMethodTask.model_fields)
    if missing:
        raise mismatch(f"the fields {sorted(missing)} of ExecuteMergeMethodTask")
    for module, path, wrapper in _PATCHES:
        if module in sys.modules:
            try:
                owner, name, _ = wrapt.resolve_path(sys.modules[module], path)
            except AttributeError:
                raise mismatch(f"{module}.{path}") from None
            wrap(owner, name, wrapper)


def run_merge(
    run: Callable[..., None],
    merge_config: MergeConfiguration,
    out_path: str,
    options: MergeOptions,
    config_source: str | None = None,
) -> None:
    """mergekit's ``run_merge`` on a configuration of ours."""
    session = Session()
    token = _session.set(session)
    try:
        with session.held, working("the merge"):
            models = merge_config.referenced_models()
            options = session.held.enter_context(adapter_cache(models, out_path, options))
            if config_source:
                # mergekit's own object does not have the keys that it does not know.
                spec = METHODS[merge_config.merge_method].spec
                warn(*recipe.misplaced_keys(config_source, spec))
            run(merge_config, out_path, options, config_source)
            if session.recorder is not None:
                base = session.recorder.counter.merges[0].base_model
                writing.copy_base_files(base, merge_config, out_path, options)
    finally:
        _session.reset(token)


def find_architecture(
    find: Callable[..., Any], config: MergeConfiguration, options: MergeOptions
) -> Any:
    """The architecture of a merge of ours, after a check of options and models' files."""
    recipe.check_settings(config, options)
    return prepare(config, options).architecture


def _plan(wrapped: Callable[[], None], planner: Any, args: Any, kwargs: Any) -> None:
    """After mergekit's planning, exchange its merges for ours.

    mergekit casts to the output dtype after a method has returned. Our merges are told that
    dtype, so that float32 results are rounded once.
    """
    method = getattr(planner, "_method", None)
    if not isinstance(method, RamMerge):
        return wrapped(*args, **kwargs)
    out_config = planner.out_model_config
    prepared = prepared_models(planner.config, planner.options)
    prepared.fit(out_config)
    planner.arch_info = prepared.architecture
    with working("planning the merge"):
        wrapped(*args, **kwargs)
    warn(*recipe.unknown_parameters(planner.config, method.spec))
    merges = [
        task.model_copy(update={"out_dtype": weight.force_dtype or planner.config.out_dtype})
        for weight, task in planner._tensors
    ]
    output = inventory.check_plan(merges, prepared, out_config)
    planned = tasks.plan_merges(
        merges, output, planner.options, ties_embeddings=is_tied(out_config)
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
    recorder, session = getattr(planner, "mergekit_ram_recorder", None), _session.get()
    if recorder is None:
        return planned
    hold = None
    if session is not None:
        session.recorder, hold = recorder, session.held.enter_context
    referenced = planner.config.referenced_models()
    inputs = [part.path for model in referenced for part in (model.model, model.lora) if part]
    return [
        _guard(recorder, task, inputs, hold) if isinstance(task, FinalizeModel) else task
        for task in planned
        if not isinstance(task, SaveTensor)
    ]


def plan_raw(
    plan: Callable[..., list[Task[Any]]],
    config: Any,
    out_path: str,
    union: bool,
    intersection: bool,
    options: MergeOptions,
) -> list[Task[Any]]:
    """mergekit-pytorch's plan of a merge of ours: its last task, which has all the others.

    Raises:
        RamError: models, parameters or the output folder are not as they have to be.
    """
    spec, command = METHODS[config.merge_method].spec, click.get_current_context(silent=True)
    recipe.check_settings(config, options)
    if command and "config_path" in command.params:
        # The configuration itself does not have the keys that mergekit does not know.
        text = Path(command.params["config_path"]).read_text(encoding="utf-8")
        warn(*recipe.misplaced_keys(text, spec, type(config)))
    warn(*recipe.unknown_parameters(config, spec))
    paths = sorted({entry.model for entry in config.models} | {config.base_model} - {None})
    for path in paths:
        read_shard(Path(path), path.lower().endswith(".safetensors"), path)
    with working("planning the merge"):
        last: Any = plan(config, out_path, union, intersection, options)[-1]
    # mergekit lists them in the order of a set.
    ordered = sorted(last.tensor_save_tasks, key=lambda save: str(save.tensor_name))
    merges = [tasks.may_be_lacked(save.tensor_task) for save in ordered]
    output = inventory.check_plan(merges)
    planned = tasks.plan_merges(merges, output, options)
    pairs = zip(ordered, planned.tasks, strict=True)
    saves = tuple(save.model_copy(update={"tensor_task": merge}) for save, merge in pairs)
    last = last.model_copy(update={"tensor_save_tasks": saves})
    recorder = MergeRecorder(spec.name, planned.counter, output)
    hold = command.with_resource if command else None
    return [_guard(recorder, last, [*map(os.path.dirname, paths)], hold)]


def _guard(
    recorder: MergeRecorder,
    last: FinalizeModel,
    inputs: Sequence[str],
    hold: Callable[[ExitStack], object] | None,
) -> Task[Any]:
    """Check and lock the output folder before the long passes, and exchange the writing tasks.

    ``hold`` releases it when the merge ends.
    """
    out_path = last.writer_task.out_path
    if _run.get() is None:
        folder.check_unfinished(out_path)
        folder.check_output(out_path, recorder.output.size, inputs)
        if hold is not None:
            hold(folder.lock_folder(out_path))
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


def _make_executor(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    run = _run.get()
    if run is None:
        return wrapped(*args, **kwargs)
    return SimpleNamespace(run=lambda **_: run(kwargs["targets"]))


@contextmanager
def executed_by(run: Run) -> Iterator[None]:
    """Let ``run_merge`` hand the tasks of its plan to ``run`` in place of its executors.

    mergekit plans, and writes everything but the weights. The plan leaves its output folder alone.

    Args:
        run: gives back the tasks whose values ``run_merge`` asks for, with their values.

    Raises:
        HostError: mergekit's executors are not where they should be.
    """
    importlib.import_module("mergekit.merge")
    patch()
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


class _PlanTaken(BaseException):
    """Leaves ``run_merge`` with its plan; no failure, which callers in between would report."""


def planned_to_disk(
    config: MergeConfiguration, out_path: str, options: MergeOptions, source: str | None = None
) -> list[Task[Any]]:
    """The tasks that ``run_merge`` would execute, by any method, none of them executed.

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
        sys.modules["mergekit.merge"].run_merge(config, out_path, options, source)
    return taken


_PATCHES = (
    ("mergekit.plan", "MergePlanner.plan_to_disk", _plan_to_disk),
    ("mergekit.plan", "MergePlanner._plan", _plan),
    ("mergekit.merge", "generate_card", _generate_card),
    ("mergekit.merge", "Executor", _make_executor),
    ("mergekit.merge", "MultiGPUExecutor", _make_executor),
    ("mergekit.card", "is_hf", _is_of_hub),
)
