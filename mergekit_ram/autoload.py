"""How the plugin gets into a process: torch calls :func:`autoload` at the end of its import.

Only the standard library and wrapt are imported here. When, and only when, the process has
imported mergekit's registry of methods, the two functions that everybody asks it by are
wrapped; the first question brings in the rest. By then no module is half imported, whichever
the process imported first.

Whatever mergekit looks like, nothing here raises before one of our methods is asked for.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from mergekit_ram import commands
from mergekit_ram.switches import DISABLE_VARIABLE as DISABLE_VARIABLE
from mergekit_ram.switches import is_set

METHOD_NAMES = frozenset({"ram", "ram_plus", "ram_directions"})

PACKAGE = "mergekit.merge_methods"
REGISTRY_MODULE = "mergekit.merge_methods.registry"
HOST_MODULE = "mergekit_ram.host"
REGISTRY_FUNCTIONS = ("get", "registered_methods")
ARCHITECTURE_MODULE = "mergekit.architecture"
MERGE_MODULE = "mergekit.merge"
ARCHITECTURE_FUNCTION = "get_architecture_info"
RUN_FUNCTION = "run_merge"

PLANNER_MODULES = ("mergekit.plan", "mergekit.scripts.merge_raw_pytorch")
MERGING_MODULES = ("plan.inventory", "plan.tasks", "plan.writing", "record.merge", "show.card")
"""Of ours, what a planned merge needs: a mergekit that it does not fit is refused beforehand."""

LOG = logging.getLogger("mergekit_ram")

_hooks_registered = False
_wanted = False
_undo: list[Callable[[], None]] = []
_wrapped: dict[str, Any] = {}
_failure: Exception | None = None
_said: set[str] = set()


def autoload() -> None:
    """The entry point in the group ``torch.backends``.

    An exception here would make ``import torch`` fail, so it becomes a warning.
    """
    try:
        install()
    except (Exception, SystemExit) as error:
        _say_once(f"mergekit-ram could not be switched on: {_one_line(error)}")


def _say_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        LOG.warning("%s", line)


def disabled() -> bool:
    """Whether the environment says that the plugin shall stay out of mergekit."""
    return is_set(DISABLE_VARIABLE)


def install() -> bool:
    """Make our methods known to mergekit, now or as soon as it is imported.

    Calling it again changes nothing.

    Returns:
        Whether the plugin is on; it is not where ``MERGEKIT_RAM_DISABLE=1`` is set.
    """
    global _hooks_registered, _wanted
    if disabled():
        return False
    import wrapt

    _wanted = True
    for name in _HOOKS:
        module = sys.modules.get(name)
        if module is None:
            if not _hooks_registered:
                wrapt.register_post_import_hook(_meet, name)
        else:
            is_whole = not _is_half_imported(module)
            _meet(module, is_whole=is_whole)
            if not is_whole and type(module) is ModuleType:
                module.__class__ = _HalfImported
    _hooks_registered = True
    return True


def uninstall() -> None:
    """Undo :func:`install`: mergekit has its own methods again, and its own planners."""
    global _wanted, _failure
    _wanted, _failure = False, None
    _uninstall_host()
    while _undo:
        _undo.pop()()
    _wrapped.clear()


def _uninstall_host() -> None:
    host = sys.modules.get("mergekit_ram.host")
    if host is not None:
        host.uninstall()


def _meet(module: ModuleType, *, is_whole: bool = True) -> None:
    """Wrap what is asked first in a module of mergekit, whatever that module is like."""
    if not _wanted:
        return
    try:
        _HOOKS[module.__name__](module)
        if module.__name__ == PACKAGE and is_whole:
            _check_questions_are_met()
    except Exception as error:
        _say_once(f"mergekit-ram could not be switched on: {_one_line(error)}")


def _is_half_imported(module: ModuleType) -> bool:
    spec = ModuleType.__getattribute__(module, "__spec__")
    return bool(getattr(spec, "_initializing", False))


class _HalfImported(ModuleType):
    """A module that imports torch, and so reaches us, in its midst: met when first looked at whole.

    Modules of mergekit that are there before torch get this class for as long as it takes.
    """

    def __getattribute__(self, name: str) -> Any:
        if not _is_half_imported(self):
            self.__class__ = ModuleType  # type: ignore[assignment]
            _meet(self)
        return ModuleType.__getattribute__(self, name)


def _wrap_registry(module: ModuleType) -> None:
    """Wrap the questions to the registry where they are defined, and where they are taken from."""
    import wrapt

    for name in REGISTRY_FUNCTIONS:
        function = getattr(module, name, None)
        if not callable(function) or name in _wrapped:
            continue
        _wrapped[name] = wrapt.FunctionWrapper(function, _answer)
        _exchange(name, function, _wrapped[name])
        _undo.append(partial(_exchange, name, _wrapped[name], function))


def _exchange(name: str, before: Any, after: Any) -> None:
    # While the package is still being imported it takes the wrapped function by itself.
    for module in (PACKAGE, REGISTRY_MODULE):
        owner = sys.modules.get(module)
        if owner is not None and getattr(owner, name, None) is before:
            setattr(owner, name, after)


def _check_questions_are_met() -> None:
    """Say so where mergekit will answer by itself: the package is whole after its registry."""
    if REGISTRY_FUNCTIONS[0] not in _wrapped:
        from mergekit_ram.compatibility import mismatch

        _say_once(str(mismatch(f"the function {PACKAGE}.{REGISTRY_FUNCTIONS[0]}")))


def _answer(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Answer a question to the registry after our methods and planners are in place."""
    asked = any(map(_is_ours, (*args, *kwargs.values())))
    _bring_in(planners=asked)
    if asked and _failure is not None:
        # mergekit's own `ram` is another formula: no answer is better than that one.
        raise _failure
    try:
        return wrapped(*args, **kwargs)
    except RuntimeError as error:
        raise _named(error, [*args, *kwargs.values()]) from None


def _named(error: RuntimeError, asked: list[Any]) -> RuntimeError:
    """The registry's refusal of a method that does not exist, with the nearest that does."""
    if _failure is not None or len(asked) != 1 or not isinstance(asked[0], str):
        return error
    from mergekit_ram.plan import recipe

    methods = sys.modules[REGISTRY_MODULE].registered_methods()
    return recipe.unknown_method(asked[0], [method.spec.name for method in methods])


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and name in METHOD_NAMES


def _bring_in(*, planners: bool) -> None:
    global _failure
    if _failure is not None:
        return
    try:
        if HOST_MODULE not in sys.modules:
            # Read from disk, and later on it is asked whenever it matters: not at every question.
            from mergekit_ram import compatibility

            compatibility.check_version()

        from mergekit_ram import host

        host.register(sys.modules[REGISTRY_MODULE])
        for name in (ARCHITECTURE_MODULE, MERGE_MODULE):
            if name in sys.modules:
                _wrap_architecture(sys.modules[name])
        if planners:
            host.patch_planners()
            if any(name in sys.modules for name in PLANNER_MODULES):
                for name in (f"mergekit_ram.{module}" for module in MERGING_MODULES):
                    # Asked for hundreds of times in a merge, where a look-up is quicker.
                    if name not in sys.modules:
                        importlib.import_module(name)
    except Exception as error:
        from mergekit_ram.compatibility import refusal

        _failure = refusal(error)
        LOG.warning("%s", _failure)
        _uninstall_host()


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _wrap_architecture(module: ModuleType) -> None:
    """Meet ``run_merge`` at its first step: it opens the models before it asks for a method."""
    import wrapt

    for name, wrapper in ((ARCHITECTURE_FUNCTION, _architecture), (RUN_FUNCTION, _run)):
        function = getattr(module, name, None)
        if not _wanted or function is None or isinstance(function, wrapt.FunctionWrapper):
            continue
        setattr(module, name, wrapt.FunctionWrapper(function, wrapper))
        _undo.append(partial(setattr, module, name, function))


def _run(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Read a recipe's text, whose misplaced keys mergekit's own object of it does not have.

    Around the whole merge, whatever fails in it is said in one line.
    """
    given = dict(zip(("merge_config", "out_path", "options", "config_source"), args, strict=False))
    given |= kwargs
    config, source = given.get("merge_config"), given.get("config_source")
    method = getattr(config, "merge_method", None)
    if not _wanted or method not in METHOD_NAMES:
        return wrapped(*args, **kwargs)
    from mergekit_ram.compatibility import understood

    with understood():
        from mergekit.merge_methods import get

        from mergekit_ram.merges import boundary
        from mergekit_ram.plan import recipe
    with boundary.working("the merge"):
        if source:
            recipe.warn_about_places(source, get(method).spec)
        return wrapped(*args, **kwargs)


def _architecture(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    config = kwargs.get("config", args[0] if args else None)
    if not _is_ours(getattr(config, "merge_method", None)):
        if "mergekit_ram.models.prepare" in sys.modules:
            sys.modules["mergekit_ram.models.prepare"].forget_loaders()
        return wrapped(*args, **kwargs)
    from mergekit_ram.compatibility import understood

    with understood():
        from mergekit_ram import host
    return host.find_architecture(*args, **kwargs)


def _wrap_command(module: ModuleType) -> None:
    if _wanted:
        _undo.extend(commands.wrap(module, _is_ours))


_HOOKS = {
    **dict.fromkeys(commands.COMMANDS, _wrap_command),
    REGISTRY_MODULE: _wrap_registry,
    PACKAGE: _wrap_registry,
    ARCHITECTURE_MODULE: _wrap_architecture,
    MERGE_MODULE: _wrap_architecture,
}
