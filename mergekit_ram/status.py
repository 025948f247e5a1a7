"""Whether the plugin is on in this process, and how to change that."""

from __future__ import annotations

import importlib.metadata
import os

from mergekit_ram import autoload

AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch's own switch for the entry points that it calls when it is imported."""

PACKAGES = ("mergekit-ram", "mergekit", "torch", "numba")

SWITCHES = f"""\
switch off   {autoload.DISABLE_VARIABLE}=1 in the environment; mergekit_ram.uninstall() in Python
switch on    leave that variable out; import mergekit_ram where torch's autoload is off
"""


def status_text() -> str:
    """What ``mergekit-ram status`` prints."""
    lines = [f"{package:<13}{_version(package)}" for package in PACKAGES]
    lines.append(f"{'autoload':<13}{_autoload()}")
    lines += [f"{name:<13}{_owner(name)}" for name in sorted(autoload.METHOD_NAMES)]
    return "\n".join(lines) + "\n" + SWITCHES


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _autoload() -> str:
    if autoload.disabled():
        value = os.environ[autoload.DISABLE_VARIABLE]
        return f"off: {autoload.DISABLE_VARIABLE}={value} is set"
    if os.environ.get(AUTOLOAD_VARIABLE, "1") == "0":
        return f"off: {AUTOLOAD_VARIABLE}=0 is set; only programs that import mergekit_ram have it"
    return "on: `import torch` switches the plugin on"


def _owner(name: str) -> str:
    """The package whose method answers to a name, or why none does."""
    from mergekit import merge_methods

    try:
        method = merge_methods.get(name)
    except (RuntimeError, KeyError, ValueError) as error:
        return f"nobody: {' '.join(str(error).split())}"
    package = type(method).__module__.split(".")[0].replace("_", "-")
    return f"{package} ({type(method).__module__}.{type(method).__qualname__})"
