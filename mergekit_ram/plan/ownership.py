"""Says that ``ram`` is ours, to those who expect mergekit's own."""

from __future__ import annotations

import importlib.metadata
import logging
import threading

from mergekit_ram.switches import DISABLE_VARIABLE, QUIET_VARIABLE, is_set

LOG = logging.getLogger("mergekit_ram")

_said = threading.Event()


def say_whose_method(name: str) -> None:
    """Of ``ram``, a line of the log: at WARNING the first time in a process, then at INFO."""
    if name != "ram":
        return
    is_news = not _said.is_set() and not is_set(QUIET_VARIABLE)
    _said.set()
    LOG.log(
        logging.WARNING if is_news else logging.INFO,
        "merge method 'ram' is that of mergekit-ram %s, in place of mergekit's own; "
        "%s=1 gives the other one back, %s=1 silences this line",
        importlib.metadata.version("mergekit-ram"),
        DISABLE_VARIABLE,
        QUIET_VARIABLE,
    )
