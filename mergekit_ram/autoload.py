"""How the plugin gets into a process: torch calls :func:`autoload` at the end of its import.

Only the standard library and wrapt are imported here. When, and only when, the process has
imported mergekit's registry of methods, the two functions that everybody asks it by are
wrapped; the first question brings in the rest. By then no module is half imported, whichever
the process imported first.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from mergekit_ram.switches import DISABLE_VARIABLE as DISABLE_VARIABLE
from mergekit_ram.switches import is_set

METHOD_NAMES = frozenset({"ram", "ram_plus", "ram_directions"})

PACKAGE = "mergekit.merge_methods"
REGISTRY_MODULE = "mergekit.merge_methods.registry"
REGISTRY_FUNCTIONS = ("get", "registered_methods")
ARCHITECTURE_MODULE = "mergekit.architecture"
MERGE_MODULE = "mergekit.merge"
ARCHITECTURE_FUNCTION = "get_architecture_info"
RUN_FUNCTION = "run_merge"

LOG = logging.getLogger("mergekit_ram")

_hook_registered = False
_wanted = False
_undo: list[Callable[[], None]] = []
_registry_wrapped = False
_failure: Exception | None = None


def autoload() -> None:
    """The entry point in the group ``torch.backends``.

    An exception here would make ``import torch`` fail, so it becomes a warning.
    """
    try:
        install()
    except Exception:
        LOG.warning("mergekit-ram could not be switched on", exc_info=True)


def disabled() -> bool:
    """Whether the environment says that the plugin shall stay out of mergekit."""
    return is_set(DISABLE_VARIABLE)


def install() -> bool:
    """Make our methods known to mergekit, now or as soon as it is imported.

    Calling it again changes nothing.

    Returns:
        Whether the plugin is on; it is not where ``MERGEKIT_RAM_DISABLE=1`` is set.
    """
    global _hook_registered, _wanted
    if disabled():
        return False
    _wanted = True
    if not _hook_registered:
        import wrapt

        for module, hook in _HOOKS.items():
            wrapt.register_post_import_hook(hook, module)
        _hook_registered = True
    else:
        for module, hook in _HOOKS.items():
            if module in sys.modules:
                hook(sys.modules[module])
    return True


def uninstall() -> None:
    """Undo :func:`install`: mergekit has its own methods again, and its own planners."""
    global _wanted, _failure, _registry_wrapped
    _wanted, _failure, _registry_wrapped = False, None, False
    host = sys.modules.get("mergekit_ram.host")
    if host is not None:
        host.uninstall()
    while _undo:
        _undo.pop()()


def _wrap_registry(registry: ModuleType) -> None:
    global _registry_wrapped
    if not _wanted or _registry_wrapped:
        return
    import wrapt

    _registry_wrapped = True

    package = sys.modules.get(PACKAGE)
    for name in REGISTRY_FUNCTIONS:
        function = getattr(registry, name)
        wrapped = wrapt.FunctionWrapper(function, _answer)
        # While the package is still being imported it takes the wrapped function by itself.
        for owner in (registry, package):
            if getattr(owner, name, None) is function:
                setattr(owner, name, wrapped)
        _undo.append(partial(_restore, name, function))


def _restore(name: str, function: Any) -> None:
    for module in (PACKAGE, REGISTRY_MODULE):
        setattr(sys.modules[module], name, function)


def _answer(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Answer a question to the registry after our methods and planners are in place."""
    asked = METHOD_NAMES.intersection((*args, *kwargs.values()))
    _bring_in(planners=bool(asked))
    if asked and _failure is not None:
        # mergekit's own `ram` is another formula: no answer is better than that one.
        raise _failure
    return wrapped(*args, **kwargs)


def _bring_in(*, planners: bool) -> None:
    global _failure
    if _failure is not None:
        return
    try:
        from mergekit_ram import host

        host.register(sys.modules[REGISTRY_MODULE])
        for name in (ARCHITECTURE_MODULE, MERGE_MODULE):
            if name in sys.modules:
                _wrap_architecture(sys.modules[name])
        if planners:
            host.patch_planners()
    except Exception as error:
        _failure = error
        LOG.warning("%s", error)


def _wrap_architecture(module: ModuleType) -> None:
    """Meet ``run_merge`` at its first step: it opens the models before it asks for a method.

    A process whose first import is ``mergekit.merge`` itself has it half imported now, without
    that step; it is met when a method has been asked for, so from the second merge on.
    """
    import wrapt

    for name, wrapper in ((ARCHITECTURE_FUNCTION, _architecture), (RUN_FUNCTION, _run)):
        function = getattr(module, name, None)
        if not _wanted or function is None or isinstance(function, wrapt.FunctionWrapper):
            continue
        setattr(module, name, wrapt.FunctionWrapper(function, wrapper))
        _undo.append(partial(setattr, module, name, function))


def _run(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Read a recipe's text, whose misplaced keys mergekit's own object of it does not have."""
    given = dict(zip(("merge_config", "out_path", "options", "config_source"), args, strict=False))
    given |= kwargs
    config, source = given.get("merge_config"), given.get("config_source")
    method = getattr(config, "merge_method", None)
    if method in METHOD_NAMES and source:
        from mergekit.merge_methods import get

        from mergekit_ram.plan import misplaced

        misplaced.warn_about_places(source, get(method).spec)
    return wrapped(*args, **kwargs)


def _architecture(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    config = kwargs.get("config", args[0] if args else None)
    if getattr(config, "merge_method", None) not in METHOD_NAMES:
        return wrapped(*args, **kwargs)
    from mergekit_ram.plan import models

    return models.find_architecture(wrapped, config, *args, **kwargs)


_HOOKS = {
    REGISTRY_MODULE: _wrap_registry,
    ARCHITECTURE_MODULE: _wrap_architecture,
    MERGE_MODULE: _wrap_architecture,
}
