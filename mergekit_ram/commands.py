"""mergekit's commands, met before they read a recipe of ours.

Only the standard library is imported before a command is run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

COMMANDS = {
    "mergekit.scripts.run_yaml": ("config_file", "run_yaml"),
    "mergekit.scripts.merge_raw_pytorch": ("config_path", "run_raw"),
}
"""By module: the argument that is the recipe's path, and what of ours the command is run in."""


def wrap(module: ModuleType, is_ours: Callable[[object], bool]) -> Iterator[Callable[[], None]]:
    """Wrap a module's command, where it has one as we know them.

    Args:
        module: one of ``COMMANDS``.
        is_ours: whether a name is that of one of our methods.

    Returns:
        What undoes it.
    """
    import wrapt

    command: Any = getattr(module, "main", None)
    callback = getattr(command, "callback", None)
    if callback is None or isinstance(callback, wrapt.FunctionWrapper):
        return
    wrapper = partial(_run, *COMMANDS[module.__name__], is_ours)
    command.callback = wrapt.FunctionWrapper(callback, wrapper)
    yield partial(setattr, command, "callback", callback)


def _run(
    argument: str,
    around: str,
    is_ours: Callable[[object], bool],
    wrapped: Any,
    instance: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    path = Path(kwargs.get(argument) or os.devnull)
    recipe = _read(path)
    if not (isinstance(recipe, dict) and is_ours(recipe.get("merge_method"))):
        return wrapped(*args, **kwargs)
    from mergekit_ram.compatibility import understood

    with understood():
        from mergekit_ram.plan import reading
    return getattr(reading, around)(partial(wrapped, *args, **kwargs), path, recipe)


def _read(path: Path) -> object:
    """What a recipe holds; a broken one is nobody's, and its command says so."""
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
