"""How the plugin gets into a process: torch calls :func:`autoload` at the end of its import.

Only the standard library and wrapt are imported here. mergekit's table of methods becomes one in
which a look-up of our names imports the rest; by then all of mergekit is imported as a whole,
whichever module the process imported first. Whatever mergekit looks like, nothing here raises
before one of our methods is asked for.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import ModuleType
from typing import Any

from mergekit_ram.switches import DISABLE_VARIABLE as DISABLE_VARIABLE
from mergekit_ram.switches import is_set, replace, restore, wrap

METHOD_NAMES = frozenset({"ram", "ram_plus", "ram_directions"})

PACKAGE = "mergekit.merge_methods"
REGISTRY = "mergekit.merge_methods.registry"
TABLE = "_METHODS"
HOST = "mergekit_ram.host"

LOG = logging.getLogger("mergekit_ram")

_hooks_registered = False
_wanted = False
_failure: Exception | None = None


def autoload() -> None:
    """The entry point in the group ``torch.backends``.

    An exception here would make ``import torch`` fail, so it becomes a warning.
    """
    try:
        install()
    except (Exception, SystemExit) as error:
        _warn_off(error)


def _warn_off(error: BaseException) -> None:
    _warn_once(f"{type(error).__name__}: {' '.join(str(error).split())}")


@cache
def _warn_once(reason: str) -> None:
    LOG.warning("mergekit-ram could not be switched on: %s", reason)


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
        if name in sys.modules:
            _meet(sys.modules[name])
        elif not _hooks_registered:
            wrapt.register_post_import_hook(_meet, name)
    _hooks_registered = True
    return True


def uninstall() -> None:
    """Undo :func:`install`: mergekit has its own methods again, and its own planners."""
    global _wanted, _failure
    _wanted, _failure = False, None
    restore()


def _meet(module: ModuleType) -> None:
    """Get into a module of mergekit, whatever that module is like."""
    if not _wanted:
        return
    if _is_half_imported(module):
        if type(module) is ModuleType:
            module.__class__ = _HalfImported
        return
    try:
        _HOOKS[module.__name__](module)
    except Exception as error:
        _warn_off(error)


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


class Methods(dict[str, Any]):
    """mergekit's table of methods, with ours in place of those of the same names."""

    def __getitem__(self, name: str) -> Any:
        return _host().METHODS[name] if name in METHOD_NAMES else super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        with suppress(RuntimeError):  # without us mergekit answers as ever
            _host()
        if _failure is not None:
            raise KeyError(name)
        raise _host().unknown_method(name, self.keys() | METHOD_NAMES)

    def values(self) -> Any:
        with suppress(RuntimeError):
            return {**self, **_host().METHODS}.values()
        return super().values()


def _host() -> Any:
    """Our side of mergekit, patched into all of it that is loaded.

    Raises:
        HostError: this mergekit is none that we know. Its own `ram` is another formula: no answer
            is better than that one.
    """
    if _failure is None:
        try:
            from mergekit_ram.errors import check_version

            check_version()
            from mergekit_ram import host

            host.patch()
        except Exception as error:
            _fail(error)
        else:
            return host
    raise _failure  # type: ignore[misc]  # set by now


def _fail(error: Exception) -> None:
    global _failure
    from mergekit_ram.errors import host_error

    _failure = host_error(error)
    LOG.warning("%s", _failure)


def _exchange_table(registry: ModuleType) -> None:
    if isinstance(getattr(registry, TABLE, None), dict):
        replace(registry, TABLE, Methods)


def _check_table(package: ModuleType) -> None:
    """Let nobody take mergekit's own `ram` for ours where the table of methods is not found."""
    if not isinstance(getattr(sys.modules.get(REGISTRY), TABLE, None), Methods):
        from mergekit_ram.errors import check_version, mismatch

        try:
            check_version()
            raise mismatch(f"the table registry.{TABLE}")
        except Exception as error:
            _fail(error)
        wrap(package, "get", _refuse)


def _refuse(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if any(name in METHOD_NAMES for name in (*args, *kwargs.values())):
        return _host()
    return wrapped(*args, **kwargs)


def _handled_by(function: str, argument: str) -> Callable[..., Any]:
    """A wrapper that gives calls for our methods to a function of our side of mergekit.

    Args:
        function: its name; it is called with the wrapped function before the other arguments.
        argument: name of the first one, which is the merge's configuration.
    """

    def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        config = kwargs.get(argument, args[0] if args else None)
        if _wanted and getattr(config, "merge_method", None) in METHOD_NAMES:
            return getattr(_host(), function)(wrapped, *args, **kwargs)
        if HOST in sys.modules:
            sys.modules[HOST].forget_loaders()
        return wrapped(*args, **kwargs)

    return call


_FUNCTIONS = {
    "get_architecture_info": _handled_by("find_architecture", "config"),
    "run_merge": _handled_by("run_merge", "merge_config"),
}
"""Called before a method is looked up: models are opened first."""


def _wrap_functions(module: ModuleType) -> None:
    for name, wrapper in _FUNCTIONS.items():
        if hasattr(module, name):
            wrap(module, name, wrapper)


def _wrap_raw_command(module: ModuleType) -> None:
    wrap(module.main, "callback", _run_raw)


def _run_raw(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``mergekit-pytorch``, which does not tell its planner where a recipe was read."""
    import yaml

    path, recipe = kwargs["config_path"], None
    # The command itself says what is wrong with the file.
    with suppress(Exception), open(path, encoding="utf-8") as file:
        recipe = yaml.safe_load(file)
    if isinstance(recipe, dict) and str(recipe.get("merge_method")) in METHOD_NAMES:
        return _host().run_raw(partial(wrapped, *args, **kwargs), path)
    return wrapped(*args, **kwargs)


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    REGISTRY: _exchange_table,
    PACKAGE: _check_table,
    "mergekit.architecture": _wrap_functions,
    "mergekit.merge": _wrap_functions,
    "mergekit.scripts.merge_raw_pytorch": _wrap_raw_command,
}
