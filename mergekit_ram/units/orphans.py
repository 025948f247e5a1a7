"""Workers end with their driver, however that ends."""

from __future__ import annotations

import os
import select
import sys
import threading
import time

LOOK_EVERY = 1.0
"""Seconds between two looks at the driver, on platforms where nobody says that it has ended."""


def end_with(driver: int) -> None:
    """End this process once the process ``driver`` of this machine is gone.

    joblib's workers wait for minutes for what a killed driver will never send, with all that they
    hold in memory.
    """
    if sys.platform != "win32":  # where the question would be an interrupt
        threading.Thread(target=_watch, args=(driver,), daemon=True).start()


def _watch(driver: int) -> None:
    try:
        # Ready as soon as the process ends, even where its parent has not taken note.
        ended = select.poll()
        ended.register(os.pidfd_open(driver), select.POLLIN)
        ended.poll()
    except (AttributeError, OSError):
        while _is_there(driver):
            time.sleep(LOOK_EVERY)
    # Whatever this worker is at is done again by the next try.
    os._exit(1)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and there
    return True
