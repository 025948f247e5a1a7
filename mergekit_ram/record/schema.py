"""Schema of a record: what ``--json`` writes and ``ram_overlap.json`` holds.

Inspections and merges have one schema. Figures that a merge does not compute are null in its
record. Every field has a description; ``mergekit-ram schema`` prints them as a JSON schema.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, computed_field

from mergekit_ram.overlap import (
    AgentCounts,
    Count,
    Items,
    OverlapStatistics,
    TensorOverlap,
    WholeCounts,
)
from mergekit_ram.record.contents import FileRecord, ModelRecord

RECORD_NAME = "ram_overlap.json"
"""In the output folder of a merge."""

WORK_FOLDER = ".mergekit-ram"
"""In the output folder of an unfinished merge by units."""

SCHEMA_VERSION: Literal[3] = 3
"""Records of other versions are refused."""

SUMS: Any = {
    "tensors": {"__all__": {"change": True, "agents": {"__all__": {"active", "unique", "shared"}}}}
}
"""Left out of the JSON of tensors, of which a model may have 20,000."""

SLACK = 1e-4
"""By which a figure that was computed in float32 may lie outside of its range."""

Share = Annotated[float, Field(ge=-SLACK, le=1 + SLACK)]
Cosine = Annotated[float, Field(ge=-1 - SLACK, le=1 + SLACK)]
Interval = tuple[float, float]
Intervals = dict[str, Interval | None]
Setting = float | Annotated[Items[float], Field(min_length=1)]
"""A number that holds for all tensors, or the different ones in ascending order."""

Factor = NonNegativeFloat | Annotated[Items[NonNegativeFloat], Field(min_length=1)]
"""A setting of numbers from 0 on."""


class Frozen(BaseModel):
    """A part of a record. A field that is unknown is a difference when a record is read."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class TensorAgent(AgentCounts, frozen=True, allow_inf_nan=False):
    """What one agent changed in one tensor."""

    weight: float = Field(description="w, the factor on its task vector; 0: takes no part")
    rescale: float = Field(description="λ, the factor on its unique parameters")


class TensorRecord(TensorOverlap, frozen=True, allow_inf_nan=False):
    """One tensor of the output, as often as it is written."""

    agents: Items[TensorAgent]
    epsilon: NonNegativeFloat = Field(description="ε, the threshold of activity")
    loading: str = Field(description="digest of what is loaded for it, and how")
    interval: Intervals | None = Field(default=None, description="as in an agent's record")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def change(self) -> float:
        """Share of its parameters that some agent changed."""
        return self.changed / self.numel if self.numel else 0.0


class Settings(Frozen):
    """The merge's parameters; a list where filters or gradients give tensors different ones."""

    epsilon: Factor = Field(description="ε, the threshold of activity")
    scale: Setting = Field(description="s, the factor on the merged task vector")
    overlap_power: Setting | None = Field(
        description="p; a shared sum is divided by |T|^p; null for ram_directions"
    )
    r: Setting | None = Field(description="r of λ = 1 + r · min(ρ, α); null but for ram_plus")
    alpha: Setting | None = Field(description="α of the same; null but for ram_plus")
    ridge: Setting | None = Field(
        default=None, description="μ of ram_directions, which holds X at its anchor; else null"
    )


class CountedAgent(WholeCounts, frozen=True, allow_inf_nan=False):
    """What one agent changed in the whole model, with all that follows from its counts."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def overlap_share(self) -> tuple[float, ...]:
        """overlap_degree / active; empty without an active parameter."""
        return tuple(degree / self.active for degree in self.overlap_degree if self.active)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def unique_share(self) -> float | None:
        """unique / active."""
        return self.unique / self.active if self.active else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def overlap_unique_ratio(self) -> float | None:
        """ρ = shared / unique; null: infinite, there is no unique parameter."""
        return self.finite_ratio


class AgentRecord(CountedAgent, frozen=True):
    """What one agent changed in the whole model, and what the merge keeps of it."""

    weight: Setting = Field(description="w, the factor on its task vector; 0: takes no part")
    rescale: Factor = Field(description="λ, the factor on its unique parameters")
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
        "the default",
    )
    retained_mean: float | None = Field(
        default=None, description="the same by the mean of task vectors"
    )
    effective_rank: Share | None = Field(
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
    rescale_effect: Share | None = Field(
        default=None,
        description="share of its unique parameters whose stored value λ changes at all",
    )
    interval: Intervals | None = Field(
        default=None,
        description="of a sample: 95 % intervals by field, those of a list by field and place "
        "(overlap_share.0); null where all was counted",
    )


class PairRecord(Frozen):
    """How two agents' updates meet."""

    first: str
    second: str
    both: Count = Field(description="parameters that both changed")
    jaccard: Share | None = Field(description="both / parameters that either changed")
    cosine: Cosine | None = Field(description="of their task vectors where both changed")
    sign_conflicts: Share | None = Field(
        description="share of those parameters where one goes up and the other down"
    )
    gram_cosine: Cosine | None = Field(
        default=None,
        description="of their Gram matrices, mean over all matrices that both changed: 0 where "
        "they use other directions of the input, 1 where the same",
    )
    interval: Intervals | None = Field(default=None, description="as in an agent's record")


class ThresholdAgent(CountedAgent, frozen=True):
    """One agent at one ε."""

    rescale: Factor = Field(
        description="λ that the merge would use at this ε; one given by hand stays the same"
    )
    interval: Intervals | None = None


class ThresholdRecord(Frozen):
    """The agents at one ε."""

    epsilon: NonNegativeFloat
    agents: Items[ThresholdAgent]


class LayerRecord(Frozen):
    """The tensors of one layer together; one outside of the layers stands for itself."""

    name: str
    numel: Count
    change: Share = Field(description="share of its parameters that some agent changed")
    interval: Intervals | None = None


class SampleRecord(Frozen):
    """How a sample was drawn; every figure of the record is then an estimate."""

    fraction: Share = Field(description="of the rows of every tensor")
    seed: int
    parameters: Count = Field(description="parameters that were looked at")


class Versions(Frozen):
    """What computed the record."""

    mergekit_ram: str
    mergekit: str
    torch: str


class Finding(Frozen):
    """Something that the figures say, in words."""

    code: str = Field(description="for programs; stays the same where the words change")
    text: str


class Verdict(Frozen):
    """Which method the overlap speaks for."""

    code: str = Field(description="for programs; stays the same where the words change")
    unique_share: Share | None = Field(
        default=None, description="of all that the agents changed; null: nothing can be told"
    )
    unique_by_chance: Share | None = Field(
        default=None, description="the same if they had changed as many weights at random"
    )
    take: str | None = Field(default=None, description="the recommended method")
    compare_with: str | None = Field(default=None, description="the method to evaluate beside it")
    lines: Items[str] = Field(description="the same in sentences")


class OverlapRecord(Frozen):
    """The whole record."""

    schema_version: Literal[3] = SCHEMA_VERSION
    kind: Literal["inspection", "merge"]
    merge_method: str = Field(description="as configured")
    base: str = Field(description="the base model; several are joined by commas")
    epsilon: Factor = Field(description="as in settings")
    parameters: Count = Field(description="of the output; a tied weight counts once")
    settings: Settings
    out_dtype: str = Field(description="of the merged weights; several are joined by commas")
    agents: Items[AgentRecord]
    pairwise: Items[PairRecord] | None = None
    thresholds: Items[ThresholdRecord] | None = None
    verdict: Verdict | None = None
    findings: Items[Finding] = ()
    tensors: Items[TensorRecord]
    layers: Items[LayerRecord] = ()
    sample: SampleRecord | None = None
    seconds: NonNegativeFloat = Field(
        description="that counting took, or the merge as far as its last byte"
    )
    models: Items[ModelRecord]
    counts_from: str | None = Field(
        default=None, description="the record that the counts were taken from; null: counted here"
    )
    written: Items[FileRecord] | None = Field(
        default=None, description="the files of the merged weights; null without a merge"
    )
    versions: Versions

    def statistics(self) -> OverlapStatistics:
        """The counts alone, from which λ_t is computed for any r and α."""
        return OverlapStatistics.model_construct(tensors=self.tensors)

    def agent(self, model: str) -> AgentRecord:
        """The record of the agent of that name."""
        return next(agent for agent in self.agents if agent.model == model)

    def to_json(self) -> str:
        """The record as JSON text, one line per field."""
        fields = self.model_dump(mode="json", exclude=SUMS)
        lines = (f' "{name}": {json.dumps(value)}' for name, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"
