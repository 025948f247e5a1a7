"""What a merge keeps of each agent's update."""

from __future__ import annotations

import plotly.graph_objects as go

from mergekit_ram.record.schema import AgentRecord, OverlapRecord
from mergekit_ram.show import wording
from mergekit_ram.show.page import palette
from mergekit_ram.show.page.figures import look

METHODS = (
    ("retained_mean", "mean of task vectors"),
    ("retained_ram", "ram"),
    ("retained_ram_plus", "ram_plus"),
    ("retained_directions", "ram_directions"),
    ("retained", "as configured"),
)

GROUPED_BAR = 22
GROUP_GAP = 14


def retained(record: OverlapRecord) -> look.Panel | None:
    """Bars per agent and method; null where the record has no energies."""
    known = [(field, title) for field, title in METHODS if _is_worth_a_bar(record, field)]
    if not known:
        return None
    look_of = {
        field: (colour, pattern)
        for (field, _), colour, pattern in zip(
            METHODS, palette.METHODS, look.PATTERNS, strict=False
        )
    }
    traces = [
        _bars(
            record,
            title,
            field,
            [getattr(agent, field) for agent in record.agents],
            *look_of[field],
        )
        for field, title in known
    ]
    return look.Panel(
        name="retained",
        title="Kept of each agent's update",
        caption="The share of the agent's own update that a merge carries, weighted by size: 1 "
        "(dotted) is whole, less is diluted, more is exaggerated. The mean of N agents keeps "
        "about 1/N of what only one changed.",
        plot=_grouped(record, traces, "retained", whole=1.0),
    )


def _is_worth_a_bar(record: OverlapRecord, field: str) -> bool:
    """Whether it is known; and what is configured is mostly one of the others."""
    values = [getattr(agent, field) for agent in record.agents]
    others = [
        [getattr(agent, other) for agent in record.agents] for other, _ in METHODS if other != field
    ]
    is_known = any(value is not None for value in values)
    return is_known and not (field == "retained" and values in others)


def realised(record: OverlapRecord) -> look.Panel | None:
    """λ as meant and as the output dtype stores it; null where nothing was stored, or λ is 1."""
    if all(agent.realised_rescale is None for agent in record.agents):
        return None
    meant: list[float | None] = [meant_rescale(record, agent) for agent in record.agents]
    if all(value == 1 for value in meant):
        return None
    stored = [agent.realised_rescale for agent in record.agents]
    traces = [
        _bars(record, "as meant", "rescale", [_extra(value) for value in meant], palette.MEANT, ""),
        _bars(
            record,
            "as stored",
            "realised_rescale",
            [_extra(value) for value in stored],
            palette.STORED,
            "/",
        ),
    ]
    return look.Panel(
        name="realised",
        title=f"What {record.out_dtype} keeps of λ",
        caption="λ − 1, what λ adds to the unique parameters, as meant and after rounding to the "
        "output's dtype. A second bar much shorter than the first: rounding takes λ away, and "
        "out_dtype: float32 would keep it.",
        plot=_grouped(record, traces, "λ − 1"),
    )


def meant_rescale(record: OverlapRecord, agent: AgentRecord) -> float:
    """The agent's λ; where it differs by tensor, its mean over the unique parameters."""
    if not isinstance(agent.rescale, tuple):
        return agent.rescale
    counts = [
        counts
        for tensor in record.tensors
        for counts in tensor.agents
        if counts.model == agent.model
    ]
    unique = sum(count.unique for count in counts)
    total = sum(count.unique * count.rescale for count in counts)
    return total / unique if unique else max(agent.rescale)


def _extra(rescale: float | None) -> float | None:
    return None if rescale is None else rescale - 1.0


def _bars(
    record: OverlapRecord,
    title: str,
    field: str,
    values: list[float | None],
    colour: palette.Colour,
    pattern: str,
) -> go.Bar:
    agents = record.agents
    error = look.error_bars(values, [_interval(agent, field) for agent in agents])
    return go.Bar(
        name=title,
        orientation="h",
        x=values,
        y=[agent.label for agent in look.agents(record)],
        text=look.beside([wording.factor(value) for value in values], error),
        textposition="outside",
        cliponaxis=False,
        textangle=0,
        hovertext=[
            look.lines(
                look.plain(agent.model),
                f"{title}: {wording.factor(value)}",
                look.interval(agent, field, wording.factor),
                _effect(agent) if field == "realised_rescale" else "",
            )
            for agent, value in zip(agents, values, strict=True)
        ],
        hoverinfo="text",
        error_x=error,
        marker={
            "color": colour.day,
            "line": look.EDGE,
            "pattern": {"shape": pattern, **look.HATCH},
        },
    )


def _interval(agent: AgentRecord, field: str) -> tuple[float, float] | None:
    """Where the bar's end lies; those of λ are drawn without the 1."""
    found = (agent.interval or {}).get(field)
    if found is None or not field.endswith("rescale"):
        return found
    return found[0] - 1.0, found[1] - 1.0


def _effect(agent: AgentRecord) -> str:
    if agent.rescale_effect is None:
        return ""
    return f"λ changes {wording.share(agent.rescale_effect)} of its unique parameters"


def _reach(traces: list[go.Bar], whole: float | None) -> list[float]:
    """From the lowest to the highest bar, with room for the numbers beside them."""
    values = [value for trace in traces for value in trace.x if value is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    end = max(high * look.ROOM_FOR_TEXT, 1.05 * (whole or 0.0)) or 1.0
    return [low + (low - end) * (look.ROOM_FOR_TEXT - 1) if low < 0 else 0.0, end]


def _grouped(
    record: OverlapRecord, traces: list[go.Bar], title: str, whole: float | None = None
) -> go.Figure:
    group = GROUPED_BAR * len(traces) + GROUP_GAP
    return look.plot(
        traces,
        look.FRAME_HEIGHT + group * len(record.agents) + look.legend_height(len(traces)),
        barmode="group",
        shapes=[] if whole is None else [look.upright(whole)],
        xaxis={"title": {"text": title}, "range": _reach(traces, whole)},
        yaxis={"type": "category", "autorange": "reversed"},
    )
