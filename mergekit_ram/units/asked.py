"""What ``--units`` and ``--finalise`` may ask of a folder: neither replaces a finished model.

The tasks of an array all run one command. One that comes late finds the model that the others have
finished, and would begin anew what it is part of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from mergekit_ram.errors import InputError
from mergekit_ram.plan.earlier import MARKS
from mergekit_ram.record.check import read_record
from mergekit_ram.record.contents import written_files
from mergekit_ram.record.merge import settings_record
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord
from mergekit_ram.units.numbering import PlannedUnits

CONFIGURATION = "mergekit_config.yml"
"""mergekit writes it beside a model."""


class NothingToDo(BaseException):
    """Leaves ``run_merge``, and says in one line why there is nothing to do.

    No ``Exception``, since it is no failure and nobody on its way shall say that it is one.
    """


def holds_model(folder: Path) -> bool:
    """Whether loaders take a folder for a model or an adapter."""
    return any((folder / mark).is_file() for mark in MARKS)


def check_finished(folder: Path, configuration: str, plan: PlannedUnits) -> None:
    """What there is to say where some units are asked of a folder with a finished model.

    Args:
        folder: with a model and no unfinished merge.
        configuration: the YAML's text.
        plan: of the merge whose units are asked for.

    Raises:
        NothingToDo: it is the model of this very merge.
        InputError: it is another one.
    """
    difference = _difference(folder, configuration, plan)
    if difference is None:
        raise NothingToDo(
            f"output folder {folder}: this merge is finished in it: there is nothing left to do. "
            "--restart merges anew."
        )
    raise InputError(
        f"output folder {folder}: a finished model lies in it, of {difference}, and no unfinished "
        "merge. Neither --units nor --finalise replaces a model: choose another folder, or run "
        "the first units alone with --restart, which removes it."
    )


def _difference(folder: Path, configuration: str, plan: PlannedUnits) -> str | None:
    """The first thing in which a finished model differs from a plan's, in words."""
    try:
        found = (folder / CONFIGURATION).read_text(encoding="utf-8")
        record = read_record(folder / RECORD_NAME)
    except (OSError, UnicodeError, InputError):
        return f"an unknown merge (it lacks {CONFIGURATION} or {RECORD_NAME})"
    # Removing a model leaves mergekit's copy of the configuration, which may be of an earlier one.
    if found != configuration or not _is_recorded(record, plan):
        return "another configuration"
    was = {model.model: model for model in record.models}
    for model in plan.recorder.models:
        if was.get(model.model) != model:
            return f"model {model.model} with other files"
    return None if record.written == _written(folder) else "weights that were changed afterwards"


def _is_recorded(record: OverlapRecord, plan: PlannedUnits) -> bool:
    settings = settings_record(plan.ledger.merges)
    return (record.merge_method, record.settings) == (plan.recorder.method, settings)


def _written(folder: Path) -> object:
    try:
        return written_files(folder)
    except InputError:
        return None


def check_nothing_lacks(folder: str, lacking: Iterable[int], units: int) -> None:
    """Check that a merge can be finalised.

    Raises:
        InputError: with the numbers of the units that are not done.
    """
    numbers = sorted(lacking)
    if numbers:
        raise InputError(
            f"output folder {folder}: {len(numbers)} of {units} units are not done "
            f"({', '.join(_runs(numbers))}), so that nothing can be finalised. Do them with "
            "--units, or all of them by the same command without --finalise."
        )


def _runs(numbers: list[int]) -> Iterator[str]:
    """Numbers in ascending order, neighbours together: 3, 5 to 8."""
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        yield str(first) if first == last else f"{first} to {last}"
        first = last = number


def beyond(asked: range, units: int) -> str:
    """What is said where none of the units that are asked for exists; else nothing."""
    if not asked or asked.start < units:
        return ""
    return (
        f"--units {asked.start}:{asked.stop}: there is nothing to do, since the merge has {units} "
        f"units, 0 to {units - 1}."
    )


def check_counts_stay(folder: str, plan: PlannedUnits) -> None:
    """Check that recorded counts are no part of a model that the merge removes.

    Raises:
        InputError: they lie in the output folder.
    """
    origin = plan.ledger.counts_from
    if origin is None:
        return
    path = Path(origin)
    if path.name == RECORD_NAME and path.parent.resolve() == Path(folder).resolve():
        raise InputError(
            f"statistics {origin}: they are part of the model in the output folder {folder}, "
            "which this merge replaces. Copy the file elsewhere, or choose another folder."
        )
