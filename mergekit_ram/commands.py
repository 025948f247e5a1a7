"""mergekit's commands, met before they read a recipe of ours.

Only the standard library is imported before a command is run.
"""

from __future__ import annotations

import os
import re
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

MENTION = re.compile(r"\bmerge_method\b\W+(\w+)")


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
    if not _is_of(path, is_ours):
        return wrapped(*args, **kwargs)
    from mergekit_ram.compatibility import understood

    with understood():
        from mergekit_ram.plan import reading
    return getattr(reading, around)(partial(wrapped, *args, **kwargs), path)


def _is_of(path: Path, is_ours: Callable[[object], bool]) -> bool:
    """Whether a recipe is one of our methods, or was meant as one and cannot be read."""
    import yaml

    try:
        data = path.read_bytes()
    except OSError:
        return False
    try:
        recipe = yaml.safe_load(data.decode("utf-8"))
    except Exception:  # the reader fails in many ways, and reads the file once more to say how
        return _mentions(data, is_ours)
    method = recipe.get("merge_method") if isinstance(recipe, dict) else None
    return is_ours(method) if isinstance(method, str) else _mentions(data, is_ours)


def _mentions(data: bytes, is_ours: Callable[[object], bool]) -> bool:
    """Whether a file's text names one of our methods, in whatever encoding its letters are."""
    text = data.replace(b"\0", b"").decode("ascii", errors="replace")
    return any(map(is_ours, MENTION.findall(text)))
