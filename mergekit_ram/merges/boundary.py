"""Where other libraries' failures become one line that says what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mergekit_ram.errors import InputError, RamError, one_line

LOG = logging.getLogger("mergekit_ram")


@contextmanager
def reading(model: object, what: str, remedy: str) -> Iterator[None]:
    """Within it, whatever goes wrong is an error about one part of one model.

    Args:
        model: as the configuration names it.
        what: is read, with its file or folder.
        remedy: a sentence that tells the way out.

    Raises:
        InputError: in place of every other exception; the traceback is logged for ``-v``.
    """
    try:
        yield
    except RamError:
        raise
    except Exception as error:  # readers of files fail in many ways
        LOG.info("model %s: reading %s failed", model, what, exc_info=True)
        raise InputError(
            f"model {model}: {what} cannot be read: {_sentence(error)} {remedy}"
        ) from error


@contextmanager
def working(what: str) -> Iterator[None]:
    """Within it, an unforeseen failure is one line too.

    Args:
        what: is going on.

    Raises:
        InputError: in place of every exception that is none of ours.
    """
    try:
        yield
    except RamError:
        raise
    except Exception as error:  # the last place where it can be said in one line
        LOG.info("%s failed", what, exc_info=True)
        raise InputError(
            f"{what} failed: {type(error).__name__}: {_sentence(error)} The option -v shows where."
        ) from error


def _sentence(error: Exception) -> str:
    reason = one_line(error)
    return reason if reason.endswith((".", "!", "?")) else reason + "."
