"""The record of one inspection or merge: what ``--json`` writes and ``ram_overlap.json`` holds.

One schema for both. Figures that a merge does not compute are null in its record. Every field
says what it is; ``mergekit-ram schema`` prints that as a JSON schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_serializer, field_validator

from mergekit_ram.errors import InputError
from mergekit_ram.overlap import AgentCounts, OverlapStatistics, TensorOverlap
from mergekit_ram.record.bounded import read_json
from mergekit_ram.record.columns import (
    Frozen,
    Interval,
    Intervals,
    Setting,
    TensorAgent,
    TensorColumns,
    TensorRecord,
    tensors_of,
)
from mergekit_ram.record.figures import Figures, beyond
from mergekit_ram.record.invariants import Counts, broken
from mergekit_ram.record.layout import lines
from mergekit_ram.record.origins import FileRecord, ModelRecord, SampleRecord, Versions
from mergekit_ram.record.parts import LayerRecord, PairRecord, ThresholdAgent, ThresholdRecord

__all__ = [
    "RECORD_NAME",
    "AgentRecord",
    "FileRecord",
    "Finding",
    "Interval",
    "Intervals",
    "LayerRecord",
    "ModelRecord",
    "OverlapRecord",
    "PairRecord",
    "SampleRecord",
    "Setting",
    "Settings",
    "TensorAgent",
    "TensorRecord",
    "ThresholdAgent",
    "ThresholdRecord",
    "Versions",
    "read_record",
]

RECORD_NAME = "ram_overlap.json"
"""In the output folder of a merge."""

SCHEMA_VERSION: Literal[2] = 2
READ_VERSIONS = (1, SCHEMA_VERSION)
"""The first one wrote an object per tensor, and knew nothing of the files' contents."""


class Settings(Frozen):
    """The merge's parameters; a list where filters or gradients give tensors different ones."""

    epsilon: Setting = Field(description="ε, the threshold of activity")
    scale: Setting = Field(description="s, the factor on the merged task vector")
    overlap_power: Setting | None = Field(
        description="p; a shared sum is divided by |T|^p; null for ram_directions"
    )
    r: Setting | None = Field(description="r of λ = 1 + r · min(ρ, α); null but for ram_plus")
    alpha: Setting | None = Field(description="α of the same; null but for ram_plus")
    ridge: Setting | None = Field(
        default=None, description="μ of ram_directions, which holds X at its anchor; else null"
    )


class AgentRecord(Frozen):
    """What one agent changed in the whole model, and what the merge keeps of it."""

    model: str = Field(description="the agent, as the configuration names it")
    weight: Setting = Field(description="w, the factor on its task vector; 0: takes no part")
    active: int = Field(description="parameters with |τ| > ε")
    shared: int = Field(description="active ones that another agent changed too")
    unique: int = Field(description="active ones that no other agent changed")
    density: float = Field(description="active / parameters, 0 to 1")
    overlap_degree: tuple[int, ...] = Field(
        description="active parameters by the number of other agents that changed them, from 0"
    )
    overlap_share: tuple[float, ...] = Field(
        default=(), description="overlap_degree / active; empty without an active parameter"
    )
    overlap_unique_ratio: float | None = Field(
        description="ρ = shared / unique; null: infinite, there is no unique parameter"
    )
    rescale: Setting = Field(description="λ, the factor on its unique parameters")
    clipped: bool = Field(
        description="whether α limits λ in some tensor; one given by hand it does not"
    )

    energy: float | None = Field(default=None, description="E = Σ τ² over its active parameters")
    unique_energy: float | None = Field(
        default=None, description="U = Σ τ² over its unique parameters"
    )
    shared_energy: float | None = Field(
        default=None,
        description="S = Σ m · τ over its shared parameters, m what the merge adds there",
    )
    retained: float | None = Field(
        default=None,
        description="share of the agent's own update that the configured method carries into "
        "the merge, (λ·U + S) / E before rounding; 1 is whole",
    )
    retained_ram: float | None = Field(default=None, description="the same by ram, where λ is 1")
    retained_ram_plus: float | None = Field(default=None, description="the same by ram_plus")
    retained_directions: float | None = Field(
        default=None,
        description="the same by ram_directions, with its ridge if the merge is one, else with "
        "the default; where ridge differs by tensor, with that of most of the output",
    )
    retained_mean: float | None = Field(
        default=None, description="the same by the mean of task vectors"
    )
    effective_rank: float | None = Field(
        default=None,
        description="share of the directions of a matrix's input that its update uses, "
        "1 / (in · Σ λ²) of its Gram matrix of trace 1; mean over all matrices by their size",
    )
    whole_rescale: float | None = Field(
        default=None,
        description="the λ at which retained would be 1: (E − S) / U; null without unique",
    )
    realised_rescale: float | None = Field(
        default=None,
        description="λ after the output dtype has rounded: Σ (out − base) · τ / Σ τ² over its "
        "unique parameters, divided by the factors scale · weight",
    )
    rescale_effect: float | None = Field(
        default=None,
        description="share of its unique parameters whose stored value λ changes at all",
    )
    interval: Intervals | None = Field(
        default=None,
        description="of a sample: 95 % intervals by field, those of a list by field and place "
        "(overlap_share.0); null where all was counted",
    )


class Finding(Frozen):
    """Something that the figures say, in words."""

    code: str = Field(description="for programs; stays the same where the words change")
    text: str


class OverlapRecord(Frozen):
    """The whole record."""

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Literal["inspection", "merge"]
    merge_method: str = Field(description="as configured")
    base: str = Field(description="the base model; several are joined by commas")
    epsilon: Setting = Field(description="as in settings")
    parameters: int = Field(description="of the output; a tied weight counts once")
    settings: Settings
    out_dtype: str = Field(description="of the merged weights; several are joined by commas")
    agents: tuple[AgentRecord, ...]
    pairwise: tuple[PairRecord, ...] | None = None
    thresholds: tuple[ThresholdRecord, ...] | None = None
    findings: tuple[Finding, ...] = ()
    tensors: tuple[TensorRecord, ...]
    layers: tuple[LayerRecord, ...] = ()
    sample: SampleRecord | None = None
    seconds: float = Field(description="that counting took, or the merge as far as its last byte")
    models: tuple[ModelRecord, ...]
    counts_from: str | None = Field(
        default=None, description="the record that the counts were taken from; null: counted here"
    )
    written: tuple[FileRecord, ...] | None = Field(
        default=None, description="the files of the merged weights; null without a merge"
    )
    versions: Versions

    @field_validator("tensors", mode="before")
    @classmethod
    def _from_columns(cls, value: Any) -> Any:
        return tensors_of(value)

    @field_serializer("tensors")
    def _to_columns(self, tensors: tuple[TensorRecord, ...]) -> TensorColumns:
        return TensorColumns.of(tensors)

    def statistics(self) -> OverlapStatistics:
        """The counts alone, from which λ_t is computed for any r and α."""
        return OverlapStatistics(
            tensors=tuple(
                TensorOverlap(
                    name=tensor.name,
                    numel=tensor.numel,
                    agents=tuple(
                        AgentCounts(model=agent.model, overlap_degree=agent.overlap_degree)
                        for agent in tensor.agents
                    ),
                )
                for tensor in self.tensors
            )
        )

    def agent(self, model: str) -> AgentRecord:
        """The record of the agent of that name."""
        return next(agent for agent in self.agents if agent.model == model)

    def to_json(self) -> str:
        """The record as a text that ends with a newline; lists of numbers take a line each."""
        return "\n".join(lines(json.loads(self.model_dump_json()))) + "\n"


def read_record(path: str | Path) -> OverlapRecord:
    """Read a record again, of any version.

    Args:
        path: of its file, or of the folder of a merge.

    Raises:
        InputError: the file is missing, is no record of a version known here, or its numbers
            contradict each other.
    """
    path = Path(path)
    if path.is_dir():
        path = path / RECORD_NAME
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a record of overlaps: {error}. Give the {RECORD_NAME} "
            "that a merge by ram or ram_plus wrote, or one of `mergekit-ram inspect --json`."
        ) from None
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version not in READ_VERSIONS or isinstance(version, bool | float):
        raise InputError(
            f"{path} is no record of overlaps of version {SCHEMA_VERSION}: its schema_version is "
            f"{version!r:.40}. Write it again with this version of mergekit-ram."
        )
    try:
        text = json.dumps(found | {"schema_version": SCHEMA_VERSION})
        # Strictly: in words, numbers could be infinite after all.
        record = OverlapRecord.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path} is damaged: {place}: {first['msg']}. Write it again.") from None
    problem = _problem(record)
    if problem:
        raise InputError(f"{path} contradicts itself: {problem}. Write it again.")
    return record


def _problem(record: OverlapRecord) -> str | None:
    """The first thing in which a record contradicts itself, in words."""
    exact = record.sample is None
    counts = Counts(record.parameters, record.agents, record.tensors, exact)
    return broken(counts) or beyond(
        Figures(
            parameters=record.parameters,
            agents=record.agents,
            tensors=record.tensors,
            pairs=record.pairwise,
            thresholds=record.thresholds,
            layers=record.layers,
            seconds=record.seconds,
            seen=None if record.sample is None else record.sample.parameters,
            exact=exact,
        )
    )
