"""Parts of a record: pairs of agents, further thresholds, layers."""

from __future__ import annotations

from pydantic import Field

from mergekit_ram.record.columns import Frozen, Intervals, Setting


class PairRecord(Frozen):
    """How two agents' updates meet."""

    first: str
    second: str
    both: int = Field(description="parameters that both changed")
    jaccard: float | None = Field(description="both / parameters that either changed")
    cosine: float | None = Field(description="of their task vectors where both changed")
    sign_conflicts: float | None = Field(
        description="share of those parameters where one goes up and the other down"
    )
    gram_cosine: float | None = Field(
        default=None,
        description="of their Gram matrices, mean over all matrices that both changed: 0 where "
        "they use other directions of the input, 1 where the same",
    )
    interval: Intervals | None = Field(default=None, description="as in an agent's record")


class ThresholdAgent(Frozen):
    """One agent at one ε."""

    model: str
    active: int
    shared: int
    unique: int
    density: float
    unique_share: float | None = Field(description="unique / active")
    overlap_unique_ratio: float | None
    rescale: Setting = Field(
        description="λ that the merge would use at this ε; one given by hand stays the same"
    )
    interval: Intervals | None = None


class ThresholdRecord(Frozen):
    """The agents at one ε."""

    epsilon: float
    agents: tuple[ThresholdAgent, ...]


class LayerRecord(Frozen):
    """The tensors of one layer together; one outside of the layers stands for itself."""

    name: str
    numel: int
    change: float = Field(description="share of its parameters that some agent changed")
    interval: Intervals | None = None
