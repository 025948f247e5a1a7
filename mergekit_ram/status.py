"""Whether the plugin is on in this process, why not, and how to change that.

Nothing here needs torch or mergekit: where one is absent or broken, the text says so.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import mergekit_ram
from mergekit_ram import autoload

AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch's own switch for the entry points that it calls when it is imported."""

ENTRY_POINTS = "torch.backends"

SWITCHES = f"""\
switch off   {autoload.DISABLE_VARIABLE}=1 in the environment; mergekit_ram.uninstall() in Python
switch on    leave that variable out; import mergekit_ram where torch's autoload is off
"""


@dataclass(frozen=True)
class Package:
    """A package that we build upon, tried out."""

    name: str
    version: str | None
    problem: str | None
    """Why it cannot be used; None where it can."""

    @classmethod
    def tried(cls, name: str, module: str) -> Package:
        """Import a module of it, and keep whatever goes wrong as words."""
        version = _version(name)
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # a file of that name may be a script that exits
            is_absent = version is None and isinstance(error, ModuleNotFoundError)
            problem = "not installed" if is_absent else f"cannot be imported: {_one_line(error)}"
            return cls(name, version, problem)
        return cls(name, version, None)

    @property
    def described(self) -> str:
        """Version and problem on one line."""
        version = self.version or ("" if self.problem == "not installed" else "unknown version")
        return ", ".join(filter(None, (version, self.problem)))


def status_text() -> str:
    """What ``mergekit-ram status`` prints."""
    torch = Package.tried("torch", "torch")
    mergekit = Package.tried("mergekit", "mergekit.merge_methods")
    rows = [
        ("mergekit-ram", mergekit_ram.__version__),
        ("mergekit", mergekit.described),
        ("torch", torch.described),
        ("numba", _numba(torch)),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("autoload", _autoload(torch)),
        *((name, _owner(name, (torch, mergekit))) for name in sorted(autoload.METHOD_NAMES)),
    ]
    width = max(len(name) for name, _ in rows) + 1
    return "\n".join(f"{name:<{width}}{text}" for name, text in rows) + "\n" + SWITCHES


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _numba(torch: Package) -> str:
    """numba's version, and whether merges on the CPU run in loops that it compiles."""
    version = _version("numba") or "not installed"
    if torch.problem is not None:
        return version
    from mergekit_ram.kernels import ram

    problem = ram.why_not()
    return f"{version}, compiled loops {'on' if problem is None else f'off: {problem}'}"


def _autoload(torch: Package) -> str:
    if autoload.disabled():
        value = os.environ[autoload.DISABLE_VARIABLE]
        return f"off: {autoload.DISABLE_VARIABLE}={value} is set"
    if torch.problem is not None:
        return f"off: torch {_as_a_verb(torch.problem)}"
    imports = "only programs that import mergekit_ram have it"
    if os.environ.get(AUTOLOAD_VARIABLE, "1") == "0":
        return f"off: {AUTOLOAD_VARIABLE}=0 is set; {imports}"
    if not any(point.name == "mergekit_ram" for point in _entry_points()):
        return f"off: the package is not installed, but found by its path; {imports}"
    return "on: `import torch` switches the plugin on"


def _entry_points() -> Sequence[importlib.metadata.EntryPoint]:
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINTS))


def _owner(name: str, needed: Sequence[Package]) -> str:
    """The package whose method answers to a name, or why none does."""
    for package in needed:
        if package.problem is not None:
            return f"nobody: {package.name} {_as_a_verb(package.problem)}"
    from mergekit import merge_methods

    try:
        method = merge_methods.get(name)
    except Exception as error:
        return f"nobody: {' '.join(str(error).split())}"
    package_name = type(method).__module__.split(".")[0].replace("_", "-")
    return f"{package_name} ({type(method).__module__}.{type(method).__qualname__})"


def _as_a_verb(problem: str) -> str:
    return f"is {problem}" if problem.startswith("not") else problem
