"""Workers that need not import everything anew: they are forked from a process that has.

torch, transformers and mergekit take seconds of a core to import. A server imports them while this
process does the same, does nothing else, and is what every worker starts as.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

PRELOADED = ("mergekit.merge", "mergekit_ram.units.work", "mergekit_ram.kernels.loops")

_started = False


def start_for(arguments: Sequence[str]) -> None:
    """Start the server where the arguments of the command ``merge`` ask for several workers here.

    CUDA does not outlive a fork once anybody has looked for a GPU, so that workers with one are
    started as joblib starts them elsewhere.
    """
    global _started
    if sys.platform != "linux" or _started or not _asks_for_workers(arguments):
        return
    from multiprocessing import forkserver  # which some platforms lack

    multiprocessing.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()
    _started = True


def _asks_for_workers(arguments: Sequence[str]) -> bool:
    options = [
        click.Option(["--workers"], type=int, default=1),
        click.Option(["--engine"], default="local"),
        click.Option(["--device"]),
        click.Option(["--cuda"], is_flag=True),
        *(click.Option([flag], is_flag=True) for flag in ("--estimate", "--finalise", "--help")),
    ]
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    command = click.Command(
        "merge", params=[*options], context_settings=settings, add_help_option=False
    )
    given = command.make_context("merge", list(arguments), resilient_parsing=True).params
    is_elsewhere = (
        given["engine"] != "local" or given["cuda"] or given["device"] not in (None, "cpu")
    )
    works = not (given["estimate"] or given["finalise"] or given["help"])
    return bool(works and not is_elsewhere and (given["workers"] or 1) > 1)


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
