"""Workers that need not import everything anew: they are forked from a process that has.

torch, transformers and mergekit take seconds of a core to import. A server imports them while this
process does the same, does nothing else, and is what every worker starts as.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

PRELOADED = "mergekit_ram.units.preload"

COMMAND, COMMAND_MODULE = "mergekit-ram", "mergekit_ram.cli"

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps files of the working folder from being taken for modules."""
SAFE_SINCE = (3, 11)

GPU_FLAGS = ("--cuda", "--gpu-rich", "--low-cpu-memory", "--multi-gpu", "--read-to-gpu")
"""CUDA does not outlive a fork once anybody has looked for a GPU."""
IDLE_FLAGS = ("--estimate", "--finalise", "--help", "-h")

_started = False


def start_for(arguments: Sequence[str]) -> None:
    """Start the server where the arguments of the command ``merge`` ask for several workers here.

    Elsewhere, and in other programs, workers are started as joblib starts them: a forked worker
    runs the main module once more, and who knows what that does.
    """
    global _started
    is_possible = sys.platform == "linux" and sys.version_info >= SAFE_SINCE and not _started
    if not (is_possible and _is_the_command() and _asks_for_workers(arguments)):
        return
    from multiprocessing import forkserver  # which some platforms lack

    multiprocessing.set_forkserver_preload([PRELOADED])
    with _environment(SAFE_PATH, "1"):
        forkserver.ensure_running()
    _started = True


def _is_the_command() -> bool:
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    return name == COMMAND_MODULE or Path(getattr(main, "__file__", None) or "").name == COMMAND


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _asks_for_workers(arguments: Sequence[str]) -> bool:
    unfit = (*GPU_FLAGS, *IDLE_FLAGS)
    options = [
        click.Option(["--workers"], type=int, default=1),
        click.Option(["--engine"], default="local"),
        click.Option(["--device"], default="cpu"),
        *(click.Option([flag], is_flag=True) for flag in unfit),
    ]
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    command = click.Command(
        "merge", params=[*options], context_settings=settings, add_help_option=False
    )
    given = command.make_context("merge", list(arguments), resilient_parsing=True).params
    is_here = given["engine"] == "local" and given["device"] == "cpu"
    is_fit = not any(given[flag.lstrip("-").replace("-", "_")] for flag in unfit)
    return bool(is_here and is_fit and (given["workers"] or 1) > 1)


@contextmanager
def used_by_joblib() -> Iterator[None]:
    """Within it joblib's own processes are forked from the server, if there is one."""
    from joblib.externals.loky.backend import context

    if not _started:
        yield
        return
    before = context.get_start_method()
    context.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        context.set_start_method(before, force=True)
