"""A run of tasks by mergekit's executor, where some of them are ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mergekit.graph import TaskHandle

from mergekit_ram.plan.lock import release_folders
from mergekit_ram.plan.writing import FinalizeMergedModel


class Members(list[TaskHandle]):
    """Targets of a run; the executor asks after every task whether it is among them."""

    def __init__(self, targets: Iterable[TaskHandle]):
        super().__init__(targets)
        self._found = frozenset(self)

    def __contains__(self, item: object) -> bool:
        return item in self._found


def run_tasks(
    run: Callable[..., Iterator[Any]], executor: Any, args: Any, kwargs: Any
) -> Iterator[Any]:
    """Around an executor's ``run``, which yields the values of its targets.

    A search through a list of all targets after every task takes longer than all tasks of a model
    of many thousand tensors.
    """
    targets = getattr(executor, "targets", None)
    if isinstance(targets, list) and _writes_ours(targets):
        executor.targets = Members(targets)
    try:
        yield from run(*args, **kwargs)
    except BaseException:
        release_folders()
        raise


def _writes_ours(targets: Iterable[Any]) -> bool:
    return any(
        isinstance(target, TaskHandle) and isinstance(target.task(), FinalizeMergedModel)
        for target in targets
    )
