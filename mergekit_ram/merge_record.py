"""What a merge leaves behind about itself: ``ram_overlap.json`` and a section of the model card."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from mergekit_ram.findings import findings_of
from mergekit_ram.ledger import Ledger
from mergekit_ram.loads import PlannedLoads
from mergekit_ram.preflight import PlannedOutput
from mergekit_ram.record import (
    RECORD_NAME,
    ModelRecord,
    OverlapRecord,
    Setting,
)
from mergekit_ram.recording import (
    agent_record,
    base_names,
    layer_records,
    model_records,
    settings_record,
    tensor_records,
    versions,
)
from mergekit_ram.report import agent_table, as_markdown, shown

CARD_SECTION = """
## Overlap of the agents

Merged by `{method}` of mergekit-ram {version} with {settings}. A parameter is active in an agent
that changed it by more than ε, and unique where no other agent did. All counts are in
`{record}`; `mergekit-ram inspect FOLDER` shows them.

{table}
"""


@dataclass(frozen=True)
class MergeRecorder:
    """Writes the record of one plan when its last weight is written.

    Args:
        method: the merge method.
        ledger: of the plan.
        dtypes: of the merged weights, by name.
        loads: what the plan reads.
        models: the files that are merged, as they were when the merge was planned.
    """

    method: str
    ledger: Ledger
    dtypes: tuple[str, ...]
    loads: PlannedLoads
    models: tuple[ModelRecord, ...]

    @classmethod
    def of(cls, method: str, ledger: Ledger, output: PlannedOutput) -> MergeRecorder:
        """Look at the models' files now, since they may be gone when the merge is done.

        Raises:
            InputError: a file is missing or broken.
        """
        models = model_records(output.loads)
        return cls(method, ledger, output.dtypes, output.loads, models)

    @functools.cached_property
    def record(self) -> OverlapRecord | None:
        """The record of the merge as far as it is when first asked for; None without counts."""
        statistics, merges = self.ledger.statistics, self.ledger.merges
        if statistics is None:
            return None
        settings = settings_record(merges)
        tensors = tensor_records(merges, self.loads, statistics)
        record = OverlapRecord(
            kind="merge",
            merge_method=self.method,
            base=base_names(merges),
            epsilon=settings.epsilon,
            parameters=statistics.parameters,
            settings=settings,
            out_dtype=", ".join(self.dtypes),
            agents=tuple(agent_record(agent, merges) for agent in statistics.agents),
            tensors=tensors,
            layers=layer_records(tensors),
            seconds=round(self.ledger.seconds, 3),
            models=self.models,
            versions=versions(),
        )
        return record.model_copy(update={"findings": findings_of(record)})

    def write(self, folder: str) -> None:
        """Write the record into the folder of the merged model."""
        record = self.record
        if record is not None:
            (Path(folder) / RECORD_NAME).write_text(record.to_json(), encoding="utf-8")

    def extend_card(self, card: str) -> str:
        """mergekit's model card with a section on the overlap of the agents."""
        record = self.record
        return card if record is None else card.rstrip("\n") + "\n" + card_section(record)


def card_section(record: OverlapRecord) -> str:
    """What the model card says of the merge."""
    settings = record.settings
    named: dict[str, Setting | None] = {"ε": settings.epsilon, "r": settings.r, "α": settings.alpha}
    given = [f"{name} = {shown(value)}" for name, value in named.items() if value is not None]
    return CARD_SECTION.format(
        method=record.merge_method,
        version=record.versions.mergekit_ram,
        settings=", ".join(given),
        record=RECORD_NAME,
        table=as_markdown(agent_table(record)),
    )
