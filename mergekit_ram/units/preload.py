"""What workers start as: this module is imported by the server that they are forked from.

Whatever goes wrong here goes wrong again in a worker, which says it better.
"""

from __future__ import annotations

import contextlib
import importlib
import signal

MODULES = ("mergekit.merge", "mergekit_ram.units.work")


def _preload() -> None:
    for name in MODULES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        from mergekit_ram.kernels import ram

        # Loads the loops, or says once for all workers why torch does their work.
        ram.available()


# The server itself ignores an interrupt once it waits for requests; workers do not.
_before = signal.signal(signal.SIGINT, signal.SIG_IGN)
_preload()
signal.signal(signal.SIGINT, _before)
