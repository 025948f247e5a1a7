"""All that is checked and said once a plan's merges are known, before the long passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.errors import InputError
from mergekit_ram.merges.loads import PlannedOutput
from mergekit_ram.merges.notes import tell
from mergekit_ram.plan import architecture
from mergekit_ram.plan.coverage import check_coverage, on_raw_tensors
from mergekit_ram.plan.models import Prepared
from mergekit_ram.plan.preflight import check_merges


def check_plan(
    merges: Sequence[ExecuteMergeMethodTask],
    prepared: Prepared,
    out_config: Any,
) -> PlannedOutput:
    """What a plan will read and write, with everything that there is to say about its models.

    Args:
        merges: of the plan.
        prepared: its models.
        out_config: the output's configuration, which is made to fit the weights.

    Raises:
        InputError: the models do not fit together, or the output would not be the whole base.
    """
    checked = check_merges(merges)
    coverage = check_coverage(merges, checked.uses, prepared.spoken_for())
    notes = [*checked.output.notes, *coverage]
    tell(notes)
    if checked.output.rows is not None:
        architecture.set_vocabulary(out_config, prepared.architecture, checked.output.rows)
    return replace(checked.output, notes=(*prepared.notes, *notes))


def check_raw_plan(merges: Sequence[ExecuteMergeMethodTask]) -> PlannedOutput:
    """The same of raw checkpoints, which have no configuration.

    Raises:
        InputError: the checkpoints do not fit together.
    """
    checked = check_merges(merges)
    notes = [*checked.output.notes, *on_raw_tensors(merges, checked.uses)]
    tell(notes)
    return replace(checked.output, notes=tuple(notes))


def listed(saves: Any) -> Any:
    """The tasks that save a raw merge's weights.

    Raises:
        InputError: mergekit lists none, and would write an output without weights.
    """
    if isinstance(saves, list) and not saves:
        raise InputError(
            "the models have no tensor in common, so that the output would be empty. Give files "
            "of one model's agents, with the same names of tensors."
        )
    return saves
