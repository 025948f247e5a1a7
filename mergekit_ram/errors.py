"""What goes wrong, said once and in full.

Every error is a ``click.ClickException``, so that mergekit's commands print its message and
no traceback, and a ``ValueError`` or ``RuntimeError`` for programs that catch those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from mergekit_ram.visible import visible

LOG = logging.getLogger("mergekit_ram")


class RamError(click.ClickException):
    """Base of all errors that this package raises on purpose.

    Names in a message come from files: what cannot be seen in them is shown escaped.
    """

    def __init__(self, message: str):
        super().__init__(visible(message))


class ParameterError(RamError, ValueError):
    """A parameter value out of range; the message names parameter, value and range."""


class InputError(RamError, ValueError):
    """Models that cannot be merged; the message names model, tensor and the way out."""


class PlanError(RamError, RuntimeError):
    """A merge that was not planned as a whole, so that no λ_t is known."""


class MethodError(RamError, RuntimeError):
    """A merge method that mergekit does not know; the message names the nearest one."""


class HostError(RamError, RuntimeError):
    """An installed mergekit that this version does not know how to extend."""


class MissingExtraError(RamError, RuntimeError):
    """A package that only an extra brings; the message names the line that installs it."""


LONGEST_REASON = 400
"""Characters of another library's message that are passed on."""


def one_line(error: BaseException) -> str:
    """What an exception of another library says, as one line that is never empty.

    >>> one_line(ValueError("no\\n such  thing"))
    'no such thing'
    >>> one_line(KeyError("lm_head"))
    "KeyError 'lm_head'"
    """
    text = " ".join(str(error).split())
    if len(text) > LONGEST_REASON:
        text = text[:LONGEST_REASON].rstrip() + " …"
    # A bare key or nothing at all is no sentence; the kind of error makes one of it.
    if not text or isinstance(error, LookupError | TypeError | AttributeError):
        return f"{type(error).__name__} {text}".rstrip()
    return text


@contextmanager
def reading(model: object, what: str, remedy: str) -> Iterator[None]:
    """Raise InputError for any failure to read a part of a model.

    Args:
        model: as the configuration names it.
        what: the part that is read, with its file or folder.
        remedy: a sentence on what to do.

    Raises:
        InputError: in place of every exception that is none of ours; its traceback is logged.
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
    """Raise InputError for any failure of a step of a merge.

    Args:
        what: the step.

    Raises:
        InputError: in place of every exception that is none of ours; its traceback is logged.
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
