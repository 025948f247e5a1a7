"""What another ε would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from mergekit_ram.names import labels
from mergekit_ram.record.schema import OverlapRecord, ThresholdAgent, ThresholdRecord
from mergekit_ram.show import wording
from mergekit_ram.show.page.figures import look


@dataclass(frozen=True)
class Quantity:
    """A figure of an agent that changes with ε."""

    field: str
    title: str
    caption: str
    form: Callable[[float | None], str]
    is_share: bool = False
    least: float = 0.0
    """What the axis begins at."""

    def axis(self, traces: Sequence[go.Scatter]) -> dict[str, Any]:
        """Of its values, and never beyond what they can be."""
        values = [value for trace in traces for value in trace.y if value is not None]
        if self.is_share:
            return look.share_axis(values)
        # A λ given by hand may be below what the formula gives.
        least, top = min([self.least, *values]), max([self.least, *values])
        room = ROOM * max(top - least, LEAST_SPAN)
        start = least - room if self.least else 0.0
        return {"tickformat": "~g", "range": [start, top + room]}


QUANTITIES = (
    Quantity(
        "density",
        "Density",
        "The share of the parameters that the agent changed by more than ε.",
        wording.share,
        is_share=True,
    ),
    Quantity(
        "unique_share",
        "Unique share",
        "The share of its active parameters that no other agent changed.",
        wording.share,
        is_share=True,
    ),
    Quantity(
        "overlap_unique_ratio",
        "ρ",
        "Shared divided by unique parameters. An infinite ρ, of an agent without unique "
        "parameters, has no point.",
        wording.ratio,
    ),
    Quantity(
        "rescale",
        "λ",
        "What RAM+ multiplies the unique parameters by, at the present r and α, or as given by "
        "hand.",
        wording.factor,
        least=1.0,
    ),
)

ROOM = 0.08
LEAST_SPAN = 0.05
"""Of an axis: beyond the largest value, and where all are the same."""

READING = " A level curve means that the choice of ε matters little."
MARK_NOTE = " The dotted upright line marks the ε of this record."
ZERO_NOTE = " ε = 0 has no place on this axis; the table below has it."


def panels(record: OverlapRecord, found: Sequence[ThresholdRecord]) -> tuple[look.Panel, ...]:
    """A panel per quantity, over the ε that were counted."""
    ordered = sorted(found, key=lambda threshold: threshold.epsilon)
    # Of one agent everything is unique, whatever ε is.
    shown = QUANTITIES if len(record.agents) > 1 else QUANTITIES[:1]
    return tuple(
        _panel(record, ordered, quantity) for quantity in shown if _is_known(ordered, quantity)
    )


def _is_known(found: Sequence[ThresholdRecord], quantity: Quantity) -> bool:
    """Whether there is a point to draw."""
    return any(
        _value(agent, quantity) is not None
        for threshold in found
        if threshold.epsilon > 0
        for agent in threshold.agents
    )


def _panel(
    record: OverlapRecord, found: Sequence[ThresholdRecord], quantity: Quantity
) -> look.Panel:
    # A logarithmic axis has no place for 0.
    positive = [threshold for threshold in found if threshold.epsilon > 0]
    marked = [epsilon for epsilon in wording.values(record.epsilon) if epsilon > 0]
    traces = [_trace(agent, positive, quantity) for agent in look.agents(record)]
    names = labels([agent.model for agent in record.agents])
    coinciding = look.mark_coinciding(traces, names)
    notes = (
        READING,
        f" {coinciding}" if coinciding else "",
        _several_note(found, quantity),
        MARK_NOTE if marked else "",
        ZERO_NOTE if len(positive) < len(found) else "",
    )
    return look.Panel(
        name=f"epsilon-{quantity.field.replace('_', '-')}",
        title=f"{quantity.title} against ε",
        caption=quantity.caption + "".join(notes),
        plot=look.plot(
            traces,
            look.CURVES_HEIGHT + look.legend_height(len(traces)),
            shapes=[look.upright(epsilon) for epsilon in marked],
            xaxis=_epsilon_axis(positive),
            yaxis={"title": {"text": quantity.title}, **quantity.axis(traces)},
            showlegend=True,
        ),
    )


def _epsilon_axis(found: Sequence[ThresholdRecord]) -> dict[str, Any]:
    epsilons = [threshold.epsilon for threshold in found]
    return {
        "type": "log",
        "title": {"text": "ε"},
        "tickvals": epsilons,
        "ticktext": [wording.setting(epsilon) for epsilon in epsilons],
    }


def _trace(agent: look.Agent, found: Sequence[ThresholdRecord], quantity: Quantity) -> go.Scatter:
    points = [_agent_at(threshold, agent.model) for threshold in found]
    values = [_value(point, quantity) for point in points]
    return go.Scatter(
        name=agent.label,
        mode="lines+markers",
        x=[threshold.epsilon for threshold in found],
        y=values,
        line=agent.line,
        marker=agent.marker(),
        error_y=look.error_bars(
            values, [(point.interval or {}).get(quantity.field) for point in points]
        ),
        hovertext=[
            look.lines(
                f"{agent.label}, ε {wording.setting(threshold.epsilon)}",
                f"{quantity.title} {quantity.form(value)}",
                look.interval(point, quantity.field, quantity.form),
                f"active {wording.count(point.active)}, unique {wording.count(point.unique)}",
            )
            for threshold, point, value in zip(found, points, values, strict=True)
        ],
        hoverinfo="text",
    )


def _value(agent: ThresholdAgent, quantity: Quantity) -> float | None:
    """What is drawn; of several values by tensor no single one would be true."""
    value = getattr(agent, quantity.field)
    return None if isinstance(value, tuple) else value


def _several_note(found: Sequence[ThresholdRecord], quantity: Quantity) -> str:
    several = dict.fromkeys(
        agent.model
        for threshold in found
        for agent in threshold.agents
        if isinstance(getattr(agent, quantity.field), tuple)
    )
    if not several:
        return ""
    return (
        f" {quantity.title} of {', '.join(several)} differs by tensor and has no curve; the table "
        "below has its range."
    )


def _agent_at(threshold: ThresholdRecord, model: str) -> ThresholdAgent:
    return next(agent for agent in threshold.agents if agent.model == model)
