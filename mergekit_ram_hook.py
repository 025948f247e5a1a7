"""What torch calls at the end of its import, in a module of its own beside the package.

A file ``mergekit_ram.py`` in the working folder hides the package from ``import mergekit_ram``,
and whatever this raised would make ``import torch`` fail.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "mergekit_ram"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)

LOG = logging.getLogger(NAME)


def autoload() -> None:
    """The entry point in the group ``torch.backends``; it raises nothing."""
    try:
        package = sys.modules.get(NAME) or _import_package()
        if not _is_ours(package.__spec__):
            _say_hidden(getattr(package, "__file__", None), "is not switched on")
    except (Exception, SystemExit) as error:  # a module of another's may be a script that exits
        reason = " ".join(str(error).split())
        LOG.warning("mergekit-ram could not be switched on: %s: %s", type(error).__name__, reason)


def _import_package() -> ModuleType:
    """The package, found beside this file where another module of its name comes first."""
    spec = importlib.util.find_spec(NAME)
    if _is_ours(spec):
        return importlib.import_module(NAME)
    if spec is not None:
        _say_hidden(spec.origin, "is taken from where it is installed")
    own = importlib.util.spec_from_file_location(
        NAME, os.path.join(FOLDER, "__init__.py"), submodule_search_locations=[FOLDER]
    )
    assert own is not None
    assert own.loader is not None
    package = sys.modules[NAME] = importlib.util.module_from_spec(own)
    try:
        own.loader.exec_module(package)
    except BaseException:
        del sys.modules[NAME]
        raise
    return package


def _is_ours(spec: ModuleSpec | None) -> bool:
    """Whether this is a copy of the package, wherever it lies, and no file of its name."""
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return any(os.path.isfile(os.path.join(folder, "autoload.py")) for folder in folders)


def _say_hidden(by: str | None, what: str) -> None:
    LOG.warning("%s has the name of the package mergekit-ram, which %s; rename it", by, what)
