"""Errors, each said once and in full, and the places where other libraries' failures become one.

Every error is a ``click.ClickException``, so that mergekit's commands print its message and
no traceback, and a ``ValueError`` or ``RuntimeError`` for programs that catch those.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import click

from mergekit_ram.switches import STRICT_VARIABLE, is_set
from mergekit_ram.text import one_line as one_line
from mergekit_ram.text import visible

LOG = logging.getLogger("mergekit_ram")

OLDEST_MERGEKIT = "0.1.5"
FIRST_UNKNOWN_MERGEKIT = "0.2"


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


def unknown_method(name: str, known: Iterable[str]) -> MethodError:
    """The error about a merge method that does not exist.

    >>> str(unknown_method("RAM+", ["linear", "ram", "ram_plus"]))
    "Unimplemented merge method RAM+: did you mean 'ram_plus'?"
    """
    names = sorted(known)
    spoken = name.lower().replace("+", "_plus")
    hint = did_you_mean(spoken, names) or f"there are {', '.join(names)}."
    return MethodError(f"Unimplemented merge method {name}: {hint}")


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A question with the nearest of some words; None where none is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean '{close[0]}'?" if close else None


def reading(model: object, part: str, remedy: str) -> AbstractContextManager[None]:
    """Raise any failure to read a part of a model as one line.

    Args:
        model: as the configuration names it.
        part: with its file or folder.
        remedy: a sentence that tells the way out.

    Raises:
        InputError: in place of every other exception; the traceback is logged for ``-v``.
    """
    return _as_one_line(f"model {model}: {part} cannot be read", remedy)


@contextmanager
def working(task: str) -> Iterator[None]:
    """Raise an unforeseen failure of a task as one line.

    Raises:
        InputError: in place of every exception that is none of ours.
    """
    with _as_one_line(f"{task} failed", "The option -v shows where."):
        yield


@contextmanager
def _as_one_line(failure: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:  # files, models and their code fail in many ways
        reason = one_line(error)
        end = "" if reason.endswith((".", "!", "?")) else "."
        said = f"{failure}: {reason}{end} {remedy}"
        LOG.info("%s", said, exc_info=True)
        raise InputError(said) from error


@functools.cache
def check_version() -> None:
    """Refuse a mergekit of another version.

    Raises:
        HostError: naming both versions.
    """
    found = version("mergekit")
    if not _numbers(OLDEST_MERGEKIT) <= _numbers(found) < _numbers(FIRST_UNKNOWN_MERGEKIT):
        raise HostError(
            f"mergekit-ram {version('mergekit-ram')} works with mergekit >= {OLDEST_MERGEKIT}, "
            f"< {FIRST_UNKNOWN_MERGEKIT}; installed is mergekit {found}. Install a matching pair "
            "of versions."
        )


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)[:3]]


def mismatch(part: str) -> HostError:
    """The error about a part of mergekit that is not as we know it."""
    return HostError(
        f"mergekit-ram {version('mergekit-ram')} does not find {part} in mergekit "
        f"{version('mergekit')} as expected, and changes nothing. Install a matching pair of "
        "versions."
    )


def host_error(error: Exception) -> Exception:
    """An error that names versions: both of them where a strange mergekit made our code fail."""
    if isinstance(error, RamError):
        return error
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "mergekit":
        return HostError(
            f"mergekit-ram {version('mergekit-ram')} cannot be imported: {one_line(error)}. "
            "Install it again."
        )
    return mismatch(f"a part that it needs ({one_line(error)})")


def version(distribution: str) -> str:
    """The installed version, or words in its place: an error text must not fail."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of a version that no metadata tells"


@dataclass(frozen=True)
class Note:
    """A warning about the models of a plan, for the log and for the record.

    Attributes:
        code: for programs; stays the same where the words change.
        text: one line.
    """

    code: str
    text: str


def tell(notes: Iterable[Note]) -> None:
    """Log every note as a warning; see :func:`warn`."""
    warn(*(note.text for note in notes))


def warn(*texts: str) -> None:
    """Log warnings about a recipe or its models, each one line.

    Raises:
        InputError: ``MERGEKIT_RAM_STRICT=1`` is set, which makes the first one an error.
    """
    for text in texts:
        if is_set(STRICT_VARIABLE):
            raise InputError(f"{text.rstrip('.')}. {STRICT_VARIABLE} makes this warning an error.")
        LOG.warning("%s", text, stacklevel=2)
