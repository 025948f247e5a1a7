"""What each agent changed: density, and with how many others."""

from __future__ import annotations

import plotly.graph_objects as go

from mergekit_ram.record.schema import AgentRecord, OverlapRecord
from mergekit_ram.show import wording
from mergekit_ram.show.page import palette
from mergekit_ram.show.page.figures import look


def density(record: OverlapRecord) -> look.Panel:
    """A bar per agent."""
    drawn = look.agents(record)
    values = [agent.density for agent in record.agents]
    error = look.error_bars(
        values, [(agent.interval or {}).get("density") for agent in record.agents]
    )
    trace = go.Bar(
        orientation="h",
        x=values,
        y=[agent.label for agent in drawn],
        text=look.beside([wording.share(value) for value in values], error),
        hovertext=[_density_in_words(agent) for agent in record.agents],
        hoverinfo="text",
        textposition="outside",
        cliponaxis=False,
        marker={
            "color": [agent.colour for agent in drawn],
            "line": look.EDGE,
            "pattern": {"shape": [agent.pattern for agent in drawn], **look.HATCH},
        },
        error_x=error,
    )
    return look.Panel(
        name="density",
        title="Density of each agent",
        caption="The share of the model's parameters that the agent changed by more than ε. "
        "Reinforcement learning mostly changes few; a bar near 100 % is worth a question.",
        plot=look.plot(
            [trace],
            look.bars_height(len(drawn)),
            xaxis={
                "title": {"text": "active / parameters"},
                **look.share_axis(_ends(record), look.ROOM_FOR_TEXT),
            },
            yaxis={"type": "category", "autorange": "reversed"},
        ),
    )


def _ends(record: OverlapRecord) -> list[float]:
    """How far the bars reach, or the upper ends of their intervals."""
    return [
        max(((agent.interval or {}).get("density") or (0, agent.density))[1], agent.density)
        for agent in record.agents
    ]


def _density_in_words(agent: AgentRecord) -> str:
    return look.lines(
        look.plain(agent.model),
        f"density {wording.share(agent.density)}",
        look.interval(agent, "density", wording.share),
        f"active {wording.count(agent.active)}",
        look.interval(agent, "active", wording.count),
    )


def overlap_degree(record: OverlapRecord) -> look.Panel:
    """A bar per agent, cut by the number of other agents."""
    degrees = max((len(agent.overlap_degree) for agent in record.agents), default=0)
    colours = [shade.day for shade in palette.degrees(degrees)]
    traces = [_degree_trace(record, others, colours[others]) for others in range(degrees)]
    return look.Panel(
        name="overlap-degree",
        title="Overlap degree of each agent",
        caption="Each agent's active parameters, by the number of other agents that changed them "
        "too. What it changed alone is unique: RAM keeps that whole and RAM+ multiplies it by λ. "
        "All else is shared, and averaged. From left to right: alone, with one other, and so on.",
        plot=look.plot(
            traces,
            look.bars_height(len(record.agents), legend=degrees),
            barmode="stack",
            uniformtext={"minsize": 9, "mode": "hide"},
            xaxis={
                "title": {"text": "share of its active"},
                "tickformat": ".0%",
                "range": [0, 1],
                "dtick": 0.25,
            },
            yaxis={"type": "category", "autorange": "reversed"},
        ),
    )


def _degree_trace(record: OverlapRecord, others: int, colour: str) -> go.Bar:
    counts = [
        agent.overlap_degree[others] if others < len(agent.overlap_degree) else 0
        for agent in record.agents
    ]
    shares = [
        count / agent.active if agent.active else 0.0
        for count, agent in zip(counts, record.agents, strict=True)
    ]
    return go.Bar(
        name=wording.degree(others),
        orientation="h",
        x=shares,
        y=[agent.label for agent in look.agents(record)],
        text=[f"{share:.1%}" for share in shares],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        hovertext=[
            look.lines(
                look.plain(agent.model),
                f"{wording.degree(others)}: {wording.count(count)}, {wording.share(share)}",
                look.interval(agent, f"overlap_share.{others}", wording.share),
            )
            for agent, count, share in zip(record.agents, counts, shares, strict=True)
        ],
        hoverinfo="text",
        # Their order tells them apart, and a hatch would run through the digits.
        textfont={"color": palette.ON_DEGREE.day},
        marker={"color": colour, "line": look.GAP},
    )
