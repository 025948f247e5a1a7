"""All that is checked and said once a plan's merges are known, before the long passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.merges.loads import PlannedOutput
from mergekit_ram.merges.notes import tell
from mergekit_ram.plan import architecture
from mergekit_ram.plan.coverage import check_coverage
from mergekit_ram.plan.models import Prepared, spoken_for
from mergekit_ram.plan.preflight import check_merges


def check_plan(
    merges: Sequence[ExecuteMergeMethodTask],
    prepared: Prepared,
    out_config: Any,
    *,
    trust_remote_code: bool,
) -> PlannedOutput:
    """What a plan will read and write, with everything that there is to say about its models.

    Args:
        merges: of the plan.
        prepared: its models.
        out_config: the output's configuration, which is made to fit the weights.
        trust_remote_code: mergekit's option.

    Raises:
        InputError: the models do not fit together, or the output would not be the whole base.
    """
    checked = check_merges(merges)
    known = spoken_for(prepared.config, prepared.architecture, trust_remote_code)
    notes = [*checked.output.notes, *check_coverage(merges, checked.uses, known)]
    tell(notes)
    if checked.output.rows is not None:
        architecture.set_vocabulary(out_config, prepared.architecture, checked.output.rows)
    return replace(checked.output, notes=(*prepared.notes, *notes))
