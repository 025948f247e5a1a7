"""``run_merge`` with somebody else in the place of its executors.

mergekit reads the configuration, plans, and writes everything but the weights; the tasks of its
plan are handed over.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from mergekit.config import MergeConfiguration
from mergekit.graph import Task
from mergekit.options import MergeOptions

from mergekit_ram.compatibility import check

MERGE_MODULE = "mergekit.merge"
EXECUTORS = ("Executor", "MultiGPUExecutor")

Run = Callable[[list[Task[Any]]], Iterator[tuple[Task[Any], Any]]]

_shared: ContextVar[bool] = ContextVar("shared", default=False)


def is_shared() -> bool:
    """Whether the plan being made is one of several for one folder, which others look after."""
    return _shared.get()


@contextmanager
def sharing_folder() -> Iterator[None]:
    """Within it, a plan neither locks its output folder nor asks for room in it."""
    token = _shared.set(True)
    try:
        yield
    finally:
        _shared.reset(token)


@contextmanager
def executed_by(run: Run) -> Iterator[None]:
    """Within it, ``run_merge`` hands the tasks of its plan to ``run``, not to its executors.

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
    try:
        yield
    finally:
        for name, executor in before.items():
            setattr(module, name, executor)


class _PlanTaken(BaseException):
    """Leaves ``run_merge`` with its plan; no failure, which whoever stands between would report."""


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

    with sharing_folder(), executed_by(take), suppress(_PlanTaken):
        importlib.import_module(MERGE_MODULE).run_merge(config, out_path, options, source)
    return taken
