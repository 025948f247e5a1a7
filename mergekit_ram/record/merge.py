"""What a merge leaves behind about itself: its record, ``ram_overlap.json``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mergekit_ram.merges.groups import agent_places
from mergekit_ram.merges.loads import PlannedLoads, PlannedOutput, TensorSize
from mergekit_ram.merges.notes import Note
from mergekit_ram.record.build import (
    agent_record,
    base_names,
    layer_records,
    settings_record,
    tensor_records,
    versions,
)
from mergekit_ram.record.counter import OverlapCounter
from mergekit_ram.record.files import model_records, written_files
from mergekit_ram.record.findings import findings_of, noted
from mergekit_ram.record.inputs import InputFiles
from mergekit_ram.record.schema import (
    RECORD_NAME,
    ModelRecord,
    OverlapRecord,
)
from mergekit_ram.record.told import tell_of_merge


@dataclass(frozen=True)
class MergeRecorder:
    """Writes the record of one plan when its last weight is written.

    Args:
        method: the merge method.
        ledger: of the plan.
        dtypes: of the merged weights, by name.
        loads: what the plan reads.
        models: the files that are merged, as they were when the merge was planned.
        inputs: tells whether they are still the same.
        sizes: of the merged weights, by name.
        notes: what the plan had to say about the models.
    """

    method: str
    ledger: OverlapCounter
    dtypes: tuple[str, ...]
    loads: PlannedLoads
    models: tuple[ModelRecord, ...]
    inputs: InputFiles
    sizes: Mapping[str, TensorSize]
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, method: str, ledger: OverlapCounter, output: PlannedOutput) -> MergeRecorder:
        """Look at the models' files now, since they may be gone when the merge is done.

        Raises:
            InputError: a file is missing or broken.
        """
        inputs = InputFiles.of(output.loads)
        models = model_records(output.loads)
        return cls(
            method,
            ledger,
            output.dtypes,
            output.loads,
            models,
            inputs,
            output.sizes,
            output.notes,
        )

    @functools.cached_property
    def record(self) -> OverlapRecord | None:
        """The record of the merge as far as it is when first asked for; None without counts."""
        statistics, merges = self.ledger.statistics, self.ledger.merges
        if statistics is None:
            return None
        settings, places = settings_record(merges), agent_places(merges)
        tensors = tensor_records(merges, self.loads, statistics)
        record = OverlapRecord(
            kind="merge",
            merge_method=self.method,
            base=base_names(merges),
            epsilon=settings.epsilon,
            parameters=statistics.parameters,
            settings=settings,
            out_dtype=", ".join(self.dtypes),
            agents=tuple(agent_record(agent, places[agent.model]) for agent in statistics.agents),
            tensors=tensors,
            layers=layer_records(tensors),
            seconds=round(self.ledger.seconds, 3),
            models=self.models,
            counts_from=self.ledger.counts_from,
            versions=versions(),
        )
        return record.model_copy(update={"findings": (*noted(self.notes), *findings_of(record))})

    def write(self, folder: str) -> None:
        """Write the record into the folder of the merged model, and say what is in it.

        Raises:
            OSError: it cannot be written.
        """
        if self.record is not None:
            record = self.record.model_copy(update={"written": written_files(Path(folder))})
            (Path(folder) / RECORD_NAME).write_text(record.to_json(), encoding="utf-8")
            if not self.ledger.quiet:
                tell_of_merge(record)
