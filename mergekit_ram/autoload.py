"""How the plugin gets into mergekit: torch imports the package, which calls :func:`install`.

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
from types import ModuleType
from typing import Any

from mergekit_ram.switches import DISABLE_VARIABLE, is_set, replace, restore, wrap

METHOD_NAMES = frozenset({"ram", "ram_plus", "ram_directions"})

PACKAGE = "mergekit.merge_methods"
REGISTRY = "mergekit.merge_methods.registry"
TABLE = "_METHODS"
HOST = "mergekit_ram.host"

LOG = logging.getLogger("mergekit_ram")

_wanted = False
_failure: Exception | None = None


def install() -> bool:
    """Make our methods known to mergekit, now or as soon as it is imported.

    Calling it again changes nothing.

    Returns:
        Whether the plugin is on; it is not where ``MERGEKIT_RAM_DISABLE=1`` is set.
    """
    global _wanted
    if is_set(DISABLE_VARIABLE):
        return False
    import wrapt

    _wanted = True
    for name in _HOOKS:
        wrapt.register_post_import_hook(_meet, name)
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
        LOG.warning("mergekit-ram could not be switched on: %s: %s", type(error).__name__, error)


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
        from mergekit_ram.errors import unknown_method

        raise unknown_method(name, self.keys() | METHOD_NAMES)

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
    global _failure
    if _failure is None:
        from mergekit_ram.errors import check_version, host_error, mismatch

        try:
            check_version()
            if not _has_table():
                raise mismatch(f"the table registry.{TABLE}")
            from mergekit_ram import host

            host.patch()
        except Exception as error:
            _failure = host_error(error)
            LOG.warning("%s", _failure)
        else:
            return host
    raise _failure


def _has_table() -> bool:
    return isinstance(getattr(sys.modules.get(REGISTRY), TABLE, None), Methods)


def _exchange_table(registry: ModuleType) -> None:
    if isinstance(getattr(registry, TABLE, None), dict):
        replace(registry, TABLE, Methods)


def _check_table(package: ModuleType) -> None:
    """Let nobody take mergekit's own `ram` for ours where the table of methods is not found."""
    if not _has_table():
        wrap(package, "get", _refuse)


def _refuse(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs) if METHOD_NAMES.isdisjoint(args) else _host()


def _handled_by(function: str) -> Callable[..., Any]:
    """A wrapper that gives calls for our methods to a function of our side of mergekit.

    Args:
        function: its name; it is called with the wrapped function before the other arguments.
    """

    def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        methods = {getattr(value, "merge_method", None) for value in (*args, *kwargs.values())}
        if _wanted and methods & METHOD_NAMES:
            return getattr(_host(), function)(wrapped, *args, **kwargs)
        if HOST in sys.modules:
            sys.modules[HOST].forget_loaders()
        return wrapped(*args, **kwargs)

    return call


_FUNCTIONS = {
    "get_architecture_info": _handled_by("find_architecture"),
    "run_merge": _handled_by("run_merge"),
    "plan_flat_merge": _handled_by("plan_raw"),
}
"""Called before a method is looked up: models are opened first."""


def _wrap_functions(module: ModuleType) -> None:
    for name in _FUNCTIONS.keys() & vars(module).keys():
        wrap(module, name, _FUNCTIONS[name])


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    REGISTRY: _exchange_table,
    PACKAGE: _check_table,
    "mergekit.architecture": _wrap_functions,
    "mergekit.merge": _wrap_functions,
    "mergekit.scripts.merge_raw_pytorch": _wrap_functions,
}
