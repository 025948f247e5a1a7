"""A run of a merge: as mergekit's commands do it, planned alone, or with other executors."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mergekit.config import MergeConfiguration
from mergekit.graph import Task
from mergekit.io.tasks import LoaderCache
from mergekit.options import MergeOptions

from mergekit_ram.errors import check, working
from mergekit_ram.methods import METHODS
from mergekit_ram.models.checkpoints import read_shard
from mergekit_ram.plan import base_files, recipe
from mergekit_ram.record.merge import MergeRecorder
from mergekit_ram.show.card import whole_card

MERGE_MODULE = "mergekit.merge"
EXECUTORS = ("Executor", "MultiGPUExecutor")

Run = Callable[[list[Task[Any]]], Iterator[tuple[Task[Any], Any]]]


@dataclass
class Session:
    """One run of ``run_merge`` or ``mergekit-pytorch`` on a merge of ours."""

    held: ExitStack
    """Releases the output folder."""
    recorder: MergeRecorder | None = None
    """Of the plan that is written to disk."""


current_session: ContextVar[Session | None] = ContextVar("current_session", default=None)
is_shared: ContextVar[bool] = ContextVar("is_shared", default=False)
"""Whether the plan being made is one of several for one folder, which others look after."""


@contextmanager
def _merging() -> Iterator[Session]:
    """Hold what belongs to one merge until it ends, and raise its failures as one line."""
    with ExitStack() as held, working("the merge"):
        session = Session(held)
        token = current_session.set(session)
        try:
            yield session
        finally:
            current_session.reset(token)


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


def generate_card(wrapped: Callable[..., str], instance: Any, args: Any, kwargs: Any) -> str:
    """Add our section to mergekit's model card of a merge of ours."""
    session = current_session.get()
    if session is None or session.recorder is None:
        return wrapped(*args, **kwargs)
    return whole_card(partial(wrapped, *args, **kwargs), session.recorder.record)


def is_of_hub(wrapped: Callable[[str], bool], instance: Any, args: Any, kwargs: Any) -> bool:
    """Let cards of our merges ask no hub for a folder of this machine, which fails offline."""
    path = kwargs.get("path", args[0] if args else "")
    return False if current_session.get() and os.path.exists(path) else wrapped(*args, **kwargs)


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
    token = is_shared.set(True)
    try:
        yield
    finally:
        is_shared.reset(token)
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
