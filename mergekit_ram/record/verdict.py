"""Says which method the overlap of agents speaks for; docs/methods.md has the rule as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mergekit_ram.overlap import SUSPICIOUS_DENSITY
from mergekit_ram.record.schema import AgentRecord, OverlapRecord, Verdict
from mergekit_ram.text import some

MUCH_UNIQUE = 0.25
"""Share of all that the agents changed: from there on it matters that RAM keeps it whole."""

LITTLE_UNIQUE = 0.05
"""The same share, below which RAM is near the mean; also of a single agent, which RAM dilutes."""

OF_CHANCE = 0.6
"""The unique share over that of as many weights chosen at random; below, agents chose the same."""

SAME_WAY = 0.9
"""Cosine of every two agents, from which on they have a part of their updates in common."""

TOWARDS_EACH_OTHER = 0.1
"""Cosine from which on agents may share the update of an exchanged base."""

MOSTLY = 0.99
PARTLY = 0.9
"""Shares of what an exchanged base, and what the others, changed together with all others."""


ADVICE = {
    "own-weights": ("ram_plus", "ram_directions"),
    "some-own-weights": ("ram_directions", "ram_plus"),
    "same-weights": ("ram_directions", "ram_plus with overlap_power 0.5"),
}
"""By code: the method to take, and what to compare it with."""


def verdict_of(record: OverlapRecord) -> Verdict:
    """Which method the overlap speaks for, and why; or why that cannot be told.

    What is unique is compared with what chance would leave unique of agents of these densities,
    since every further agent takes some of it.
    """
    agents = [agent for agent in record.agents if agent.active and agent.weight != 0]
    doubt = _doubt(record, agents)
    if doubt is not None:
        code, line = doubt
        return Verdict(code=code, lines=(f"No method can be recommended. {line}",))
    active = sum(agent.active for agent in agents)
    unique = sum(agent.unique for agent in agents) / active
    by_chance = sum(agent.active * chance(agent, agents) for agent in agents) / active
    diluted = [agent.model for agent in agents if agent.unique < LITTLE_UNIQUE * agent.active]
    as_chance = unique >= OF_CHANCE * by_chance
    if unique >= MUCH_UNIQUE and as_chance and not diluted:
        code = "own-weights"
        why = "The agents changed different weights: take ram_plus, which keeps unique ones whole"
    else:
        code = "some-own-weights" if unique >= LITTLE_UNIQUE else "same-weights"
        if unique >= LITTLE_UNIQUE and diluted:
            cause = f"Others changed nearly all weights that {some(diluted)} changed"
        elif as_chance or by_chance < LITTLE_UNIQUE:
            cause = "So many or so dense agents share the same weights"
        else:
            cause = "The agents chose the same weights"
        why = f"{cause}, and ram and ram_plus average those: take ram_directions"
    take, compare = ADVICE[code]
    lines = [
        f"{_range([a.unique / a.active for a in agents])} of each agent's changes are its own: no "
        "other agent changed those weights "
        f"(by chance {_range([chance(a, agents) for a in agents])}).",
        f"{why} (`merge_method: {take}`), and compare it with {compare}.",
        "Evaluate both: these figures, kept shares too, describe weights and not accuracy.",
    ]
    if record.kind == "merge":
        lines.append(f"This merge is by {record.merge_method}.")
    return Verdict(
        code=code,
        unique_share=unique,
        unique_by_chance=by_chance,
        take=take,
        compare_with=compare,
        lines=tuple(lines),
    )


def chance(agent: AgentRecord, agents: Sequence[AgentRecord]) -> float:
    """The share of an agent's weights that is unique if all agents change weights at random."""
    return math.prod(1 - other.density for other in agents if other is not agent)


def _range(shares: Sequence[float]) -> str:
    low, high = (f"{100 * share:.0f} %" for share in (min(shares), max(shares)))
    return low if low == high else f"{low} to {high}"


def _doubt(record: OverlapRecord, agents: Sequence[AgentRecord]) -> tuple[str, str] | None:
    """Code and words of a reason for which nothing can be told."""
    if not agents:
        return "nothing-changed", "No agent differs from the base by more than ε."
    if len(agents) == 1:
        return "one-agent", f"Only {agents[0].model} changed anything, so nothing is shared."
    names = {agent.model for agent in agents}
    pairs = {
        frozenset((pair.first, pair.second)): pair.cosine
        for pair in record.pairwise or ()
        if pair.cosine is not None and {pair.first, pair.second} <= names
    }
    is_known = len(pairs) == math.comb(len(agents), 2)
    if is_known and min(pairs.values()) >= SAME_WAY:
        return (
            "wrong-base",
            f"All agents changed the base in nearly the same direction (cosines of at least "
            f"{SAME_WAY:g}): it is not the base of their training, or they are steps of one "
            "training.",
        )
    for agent in agents:
        others = [other for other in agents if other is not agent]
        cosines = [cosine for pair, cosine in pairs.items() if agent.model in pair]
        if (
            _with_all(agent, len(agents)) >= MOSTLY
            and all(_with_all(other, len(agents)) <= PARTLY for other in others)
            and all(other.density < SUSPICIOUS_DENSITY for other in others)
            and all(cosine >= TOWARDS_EACH_OTHER for cosine in cosines)
        ):
            return (
                "exchanged-base",
                f"All that {agent.model} changed is changed by every other agent too, as if it "
                f"were the base and {record.base} an agent of it. Exchange them and inspect again.",
            )
    if not is_known and all(agent.density > SUSPICIOUS_DENSITY for agent in agents):
        return (
            "dense-agents",
            "Every agent changed nearly all weights, by its training or because the base is "
            "another one: `mergekit-ram inspect` on the configuration compares their directions.",
        )
    return None


def _with_all(agent: AgentRecord, agents: int) -> float:
    """The share of an agent's changes that all other agents changed too."""
    return sum(agent.overlap_degree[agents - 1 :]) / agent.active
