"""The command ``mergekit-ram status``: versions, and whether the plugin is on."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from datetime import datetime
from pathlib import Path

import click

from mergekit_ram import __version__
from mergekit_ram.autoload import METHOD_NAMES
from mergekit_ram.errors import HostError, check_version
from mergekit_ram.switches import DISABLE_VARIABLE, is_set
from mergekit_ram.text import one_line, visible

AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch's own switch for the entry points that it calls when it is imported."""

ENTRY_POINTS = "torch.backends"

MODULES = {"torch": "torch", "mergekit": "mergekit.merge_methods"}

SWITCHES = {
    "switch off": f"{DISABLE_VARIABLE}=1 in the environment; mergekit_ram.uninstall() in Python",
    "switch on": "leave that variable out; import mergekit_ram where torch's autoload is off",
}


@click.command("status", short_help="Show versions and whether the plugin is on, or a merge.")
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--check", is_flag=True, help="Import torch and mergekit too, and say what fails.")
def command(folder: Path | None, check: bool) -> None:
    """Show versions, whether the plugin is on, and whose ram, ram_plus and ram_directions run.

    With the FOLDER of a merge: how far it is or, of a finished one, what it was made of.
    """
    rows = _installed(check) | SWITCHES if folder is None else _merged(folder)
    width = max(map(len, rows), default=0) + 2
    for name, text in rows.items():
        click.echo(f"{visible(name):<{width}}{visible(text)}")


def _installed(check: bool) -> dict[str, str]:
    problems = {name: _problem(name, check) for name in MODULES}
    broken = next((f"{name} is {problem}" for name, problem in problems.items() if problem), None)
    return {
        "mergekit-ram": __version__,
        **{
            name: ", ".join(filter(None, (_version(name), problem)))
            for name, problem in problems.items()
        },
        "numba": _numba(check and not problems["torch"]),
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "autoload": _autoload(problems["torch"]),
        **{
            name: f"nobody: {broken}" if broken else _owner(name, check)
            for name in sorted(METHOD_NAMES)
        },
    }


def _merged(folder: Path) -> dict[str, str]:
    """How far an unfinished merge is, or what a finished one is by the record that it left."""
    from mergekit_ram.record.check import compared_with_weights, read_record
    from mergekit_ram.record.schema import RECORD_NAME, WORK_FOLDER
    from mergekit_ram.show.tables import facts

    if (folder / WORK_FOLDER).exists() or not folder.is_dir():
        from mergekit_ram.units.driver import progress_text

        click.echo(progress_text(folder), nl=False)
        return {}
    if not (folder / RECORD_NAME).exists():
        return {"merge": f"none in {folder}, neither unfinished nor finished ({RECORD_NAME})"}
    record = compared_with_weights(read_record(folder), folder)
    made = datetime.fromtimestamp((folder / RECORD_NAME).stat().st_mtime)
    problems = [found.text for found in record.findings if found.code == "other-weights"]
    files = [file.name for file in record.written or () if (folder / file.name).exists()]
    whole = f"verified by size and a sample of the bytes: {', '.join(files)}"
    return {
        "finished merge": f"{folder}, {made:%Y-%m-%d %H:%M}",
        **facts(record),
        "weights": problems[0]
        if problems
        else whole
        if files
        else "not verified: not in this folder",
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _problem(package: str, check: bool) -> str | None:
    """Why a package cannot be used, as far as that is looked at."""
    if _version(package) is None:
        return "not installed"
    try:
        if check:
            importlib.import_module(MODULES[package])
    except (Exception, SystemExit) as error:  # a file of that name may be a script that exits
        return f"not importable: {type(error).__name__}: {one_line(error)}"
    return None


def _numba(check: bool) -> str:
    version = _version("numba")
    if version is None:
        return "not installed"
    if not check:
        return f"{version}; --check tries the compiled loops"
    from mergekit_ram.kernels.ram import why_not

    problem = why_not()
    return f"{version}, compiled loops " + (f"off: {problem}" if problem else "on")


def _autoload(problem: str | None) -> str:
    imports = "only programs that import mergekit_ram have it"
    if is_set(DISABLE_VARIABLE):
        return f"off: {DISABLE_VARIABLE}={os.environ[DISABLE_VARIABLE]} is set"
    if problem is not None:
        return f"off: torch is {problem}"
    if os.environ.get(AUTOLOAD_VARIABLE, "1") == "0":
        return f"off: {AUTOLOAD_VARIABLE}=0 is set; {imports}"
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    if not any(point.name == "mergekit_ram" for point in points):
        return f"off: the package is not installed, but found by its path; {imports}"
    return "on: `import torch` switches the plugin on"


def _owner(name: str, check: bool) -> str:
    """Whose method answers to a name where mergekit_ram is imported, or why none does."""
    if is_set(DISABLE_VARIABLE):
        return "mergekit" if name == "ram" else "nobody"
    try:
        check_version()
        if check:
            from mergekit import merge_methods

            method = type(merge_methods.get(name))
            return f"mergekit-ram ({method.__module__}.{method.__qualname__})"
    except HostError as error:
        return f"nobody: {error}"
    return "mergekit-ram"
