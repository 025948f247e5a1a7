"""What another r or α would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from mergekit_ram.names import labels
from mergekit_ram.overlap import DEFAULT_ALPHA, DEFAULT_R
from mergekit_ram.record.schema import AgentRecord, Interval, OverlapRecord
from mergekit_ram.show import wording
from mergekit_ram.show.page.figures import look

LEAST_R = 0.3
LEAST_ALPHA = 4.0
"""How far the axes reach at least."""

BEYOND = 1.5
"""How far they reach beyond the largest present value, as a factor."""

BEYOND_RATIO = 1.05
"""How far they reach beyond the largest finite ρ, from which on every curve is level."""

LONGEST_LINEAR = 40.0
LOGARITHMIC_START = 0.1

STEPS = 60
LEAST_HEIGHT = 0.02


@dataclass(frozen=True)
class Present:
    """The r and α in use, or the defaults where the method has none.

    Of several values, which filters or gradients give, a curve over the other setting can hold
    but one: the largest.
    """

    r: tuple[float, ...]
    alpha: tuple[float, ...]
    words: str

    @classmethod
    def of(cls, record: OverlapRecord) -> Present:
        """Of a record of any method."""
        r, alpha = wording.values(record.settings.r), wording.values(record.settings.alpha)
        if not r or not alpha:
            words = (
                f"{record.merge_method} itself has no λ: drawn are the defaults of ram_plus, "
                f"r = {DEFAULT_R:g} and α = {DEFAULT_ALPHA:g}."
            )
            return cls(r or (DEFAULT_R,), alpha or (DEFAULT_ALPHA,), words)
        words = " ".join(
            f"{name} differs by tensor: {wording.listed(values)} are marked, and the curves over "
            f"the other setting hold it at {wording.setting(max(values))}."
            for name, values in (("r", r), ("α", alpha))
            if len(values) > 1
        )
        return cls(r, alpha, words)


@dataclass(frozen=True)
class Sweep:
    """λ over one setting, while the other is held; ``curve`` takes ρ and the setting."""

    name: str
    symbol: str
    held: str
    reading: str
    marked: tuple[float, ...]
    end: float
    curve: Callable[[float | None, float], float]

    @property
    def is_logarithmic(self) -> bool:
        """Whether what matters would all lie at the left end of a linear axis."""
        return self.end > LONGEST_LINEAR

    @property
    def grid(self) -> list[float]:
        """Where the curve is computed: at the marks too."""
        parts = [step / STEPS for step in range(STEPS + 1)]
        if self.is_logarithmic:
            whole = math.log(self.end / LOGARITHMIC_START)
            steps = [LOGARITHMIC_START * math.exp(whole * part) for part in parts]
        else:
            steps = [self.end * part for part in parts]
        return sorted({*self.marked, *steps})

    @property
    def axis(self) -> dict[str, Any]:
        """As plotly has it."""
        if not self.is_logarithmic:
            return {"range": [0, self.end]}
        return {"type": "log", "range": [math.log10(LOGARITHMIC_START), math.log10(self.end)]}


def rescale(ratio: float | None, r: float, alpha: float) -> float:
    """λ = 1 + r · min(ρ, α), where null is an infinite ρ."""
    return 1.0 + r * min(math.inf if ratio is None else ratio, alpha)


def panels(record: OverlapRecord) -> tuple[look.Panel, ...]:
    """λ over r, and over α; nothing for one agent, whose λ is 1 whatever they are."""
    if len(record.agents) < 2:
        return ()
    present = Present.of(record)
    r, alpha = max(present.r), max(present.alpha)
    over_r = Sweep(
        name="rescale-r",
        symbol="r",
        held=f"α = {wording.setting(alpha)}",
        reading="The steeper its line, the larger the agent's ρ, as far as α.",
        marked=present.r,
        end=max(LEAST_R, BEYOND * r),
        curve=lambda ratio, x: rescale(ratio, x, alpha),
    )
    over_alpha = Sweep(
        name="rescale-alpha",
        symbol="α",
        held=f"r = {wording.setting(r)}",
        reading="A curve is level from the agent's own ρ on; left of there α clips it. Where all "
        "agents are clipped, they have one λ, which then says nothing about them.",
        marked=present.alpha,
        end=max(LEAST_ALPHA, BEYOND * alpha, BEYOND_RATIO * _largest_ratio(record)),
        curve=lambda ratio, x: rescale(ratio, r, x),
    )
    notes = " ".join(note for note in (present.words, _by_hand(record)) if note)
    return tuple(_panel(record, sweep, notes) for sweep in (over_r, over_alpha))


def _largest_ratio(record: OverlapRecord) -> float:
    return max((agent.overlap_unique_ratio or 0.0 for agent in record.agents), default=0.0)


def _panel(record: OverlapRecord, sweep: Sweep, notes: str) -> look.Panel:
    drawn = list(zip(look.agents(record), record.agents, strict=True))
    curves = [_curve(agent, counts, sweep) for agent, counts in drawn]
    coinciding = look.mark_coinciding(curves, labels([agent.model for agent, _ in drawn]))
    notes = f"{coinciding} {notes}".strip()
    marks = [_marks(agent, counts, sweep) for agent, counts in drawn]
    return look.Panel(
        name=sweep.name,
        title=f"λ against {sweep.symbol}",
        caption=f"λ = 1 + r · min(ρ, α) of each agent at {sweep.held}. {sweep.reading} The dotted "
        f"upright line and the large markers are the present {sweep.symbol}. {notes}".rstrip(),
        plot=look.plot(
            [*curves, *marks],
            look.CURVES_HEIGHT + look.legend_height(len(curves)),
            shapes=[look.upright(value) for value in sweep.marked],
            xaxis={"title": {"text": sweep.symbol}, **sweep.axis},
            yaxis={"title": {"text": "λ"}, "range": _height(curves)},
            showlegend=True,
        ),
    )


def _height(curves: Sequence[go.Scatter]) -> list[float]:
    """From just below 1 to above the highest curve, even where all are level."""
    top = max((max(curve.y) for curve in curves), default=1.0)
    room = max(top - 1.0, LEAST_HEIGHT) / 10
    return [1.0 - room, top + room]


def _curve(drawn: look.Agent, agent: AgentRecord, sweep: Sweep) -> go.Scatter:
    values = [sweep.curve(agent.overlap_unique_ratio, x) for x in sweep.grid]
    return go.Scatter(
        name=drawn.label,
        legendgroup=drawn.model,
        mode="lines",
        x=sweep.grid,
        y=values,
        line=drawn.line,
        hovertext=[
            f"{drawn.label}: λ {wording.factor(value)} at {sweep.symbol} {wording.setting(x)}"
            for x, value in zip(sweep.grid, values, strict=True)
        ],
        hoverinfo="text",
    )


def _marks(drawn: look.Agent, agent: AgentRecord, sweep: Sweep) -> go.Scatter:
    values = [sweep.curve(agent.overlap_unique_ratio, x) for x in sweep.marked]
    return go.Scatter(
        name=drawn.label,
        legendgroup=drawn.model,
        showlegend=False,
        mode="markers",
        x=list(sweep.marked),
        y=values,
        error_y=look.error_bars(values, [_interval(agent)] * len(values)),
        marker=drawn.marker(size=12),
        hovertext=[
            look.lines(
                f"{drawn.label}, ρ {wording.ratio(agent.overlap_unique_ratio)}",
                f"λ {wording.factor(value)} at the present {sweep.symbol}, {wording.setting(x)}",
            )
            for x, value in zip(sweep.marked, values, strict=True)
        ],
        hoverinfo="text",
    )


def _interval(agent: AgentRecord) -> Interval | None:
    """Of the λ in use, where it is one."""
    is_one = not isinstance(agent.rescale, tuple)
    return (agent.interval or {}).get("rescale") if is_one else None


def _by_hand(record: OverlapRecord) -> str:
    """Which agents have another λ than the formula gives: ``rescale`` was set."""
    r, alpha = record.settings.r, record.settings.alpha
    if not isinstance(r, float) or not isinstance(alpha, float):
        return ""
    named = [agent.model for agent in record.agents if _differs(agent, r, alpha)]
    return f"The merge uses another λ, set by hand, for {', '.join(named)}." if named else ""


def _differs(agent: AgentRecord, r: float, alpha: float) -> bool:
    computed = rescale(agent.overlap_unique_ratio, r, alpha)
    return any(
        not math.isclose(value, computed, rel_tol=1e-6) for value in wording.values(agent.rescale)
    )
