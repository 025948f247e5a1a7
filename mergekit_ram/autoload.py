"""How the plugin gets into a process: torch calls :func:`autoload` at the end of its import.

Only the standard library and wrapt are imported here. mergekit is touched when, and only
when, the process imports it.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import Any

DISABLE_VARIABLE = "MERGEKIT_RAM_DISABLE"
REGISTRY_MODULE = "mergekit.merge_methods.registry"
METHOD_NAMES = ("ram", "ram_plus")

_hooked = False
_wanted = False


def autoload() -> None:
    """The entry point in the group ``torch.backends``.

    An exception here would make ``import torch`` fail, so one is logged and swallowed: the
    methods are then missing in mergekit, and ``import mergekit_ram`` says why.
    """
    try:
        install()
    except Exception:
        logging.getLogger("mergekit_ram").warning("could not be switched on", exc_info=True)


def disabled() -> bool:
    """Whether the environment says that the plugin shall stay out of mergekit."""
    return os.environ.get(DISABLE_VARIABLE, "0").strip().lower() not in ("", "0", "false", "no")


def install() -> bool:
    """Make ``ram`` and ``ram_plus`` known to mergekit, now or as soon as it is imported.

    Calling it again changes nothing.

    Returns:
        Whether the plugin is on; it is not where ``MERGEKIT_RAM_DISABLE=1`` is set.
    """
    global _hooked, _wanted
    if disabled():
        return False
    _wanted = True
    if not _hooked:
        import wrapt

        # Set first: with mergekit imported already, the hook runs inside this call.
        _hooked = True
        wrapt.register_post_import_hook(_on_registry_imported, REGISTRY_MODULE)
    else:
        _install_now()
    return True


def uninstall() -> None:
    """Undo :func:`install`: mergekit has its own methods again, and its own planners."""
    global _wanted
    _wanted = False
    import sys

    host = sys.modules.get("mergekit_ram.host")
    if host is not None:
        host.uninstall()


def _install_now() -> None:
    import sys

    registry = sys.modules.get(REGISTRY_MODULE)
    if registry is not None:
        _on_registry_imported(registry)


def _on_registry_imported(registry: ModuleType) -> None:
    if not _wanted:
        return
    try:
        from mergekit_ram import host

        host.install(registry)
    except Exception as error:
        # mergekit's other methods still work. Ours must not: its own `ram` is another formula.
        logging.getLogger("mergekit_ram").warning("%s", error)
        _refuse(registry, error)


def _refuse(registry: ModuleType, error: Exception) -> None:
    import wrapt

    def get(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if {*args, *kwargs.values()} & set(METHOD_NAMES):
            raise error
        return wrapped(*args, **kwargs)

    registry.get = wrapt.FunctionWrapper(registry.get, get)  # type: ignore[attr-defined]
