"""Whether the installed mergekit is one that this version knows how to extend."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import contextmanager

from mergekit_ram.errors import HostError, RamError

OLDEST_MERGEKIT = (0, 1, 5)
FIRST_UNKNOWN_MERGEKIT = (0, 2)

UNKNOWN_VERSION = "of a version that no metadata tells"

TASK_FIELDS = frozenset(
    {
        "method_name",
        "gather_tensors",
        "model_order",
        "base_model",
        "output_weight",
        "parameters",
        "input_parameters",
        "dtype",
        "out_dtype",
    }
)


def check_version() -> None:
    """Refuse a mergekit of another version.

    Raises:
        HostError: the message names both versions.
    """
    found = version("mergekit")
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", found)
    known = tuple(int(part) for part in numbers.groups() if part) if numbers else ()
    if not OLDEST_MERGEKIT <= known < FIRST_UNKNOWN_MERGEKIT:
        raise HostError(
            f"mergekit-ram {version('mergekit-ram')} works with mergekit >= "
            f"{_dotted(OLDEST_MERGEKIT)}, < {_dotted(FIRST_UNKNOWN_MERGEKIT)}; installed is "
            f"mergekit {found}. Install a matching pair of versions."
        )


def check(holds: bool, what: str) -> None:
    """Refuse a mergekit in which ``what`` is not as we know it."""
    if not holds:
        raise mismatch(what)


def mismatch(what: str) -> HostError:
    return HostError(
        f"mergekit-ram {version('mergekit-ram')} does not find {what} in mergekit "
        f"{version('mergekit')} as it knows it, and changes nothing. Install a matching "
        "pair of versions."
    )


def check_task_fields() -> None:
    from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

    missing = TASK_FIELDS - set(ExecuteMergeMethodTask.model_fields)
    check(not missing, f"the fields {sorted(missing)} of ExecuteMergeMethodTask")


def version(distribution: str) -> str:
    """The installed version, or words in its place: an error text must not fail."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN_VERSION


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@contextmanager
def understood() -> Iterator[None]:
    """Around imports of our code that a mergekit unlike ours may not let succeed.

    Raises:
        HostError: naming both versions.
    """
    try:
        check_version()
        yield
    except Exception as error:
        raise refusal(error) from None


def refusal(error: Exception) -> Exception:
    """An error that names both versions, whatever a strange mergekit made of our code."""
    if isinstance(error, RamError):
        return error
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return mismatch(f"what it needs ({reason})")
