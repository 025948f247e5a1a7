"""A record as tables for people; the same figures as JSON and page show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from mergekit_ram.record.schema import (
    AgentRecord,
    Interval,
    OverlapRecord,
    PairRecord,
    Setting,
    ThresholdAgent,
)

TOP = 5
"""Tensors and layers that are listed."""

INFINITE = "∞"
ABSENT = "–"


@dataclass(frozen=True)
class Table:
    """A heading, the names of columns, and rows of text."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def as_text(record: OverlapRecord) -> str:
    """The whole record for a terminal."""
    parts = [_headline(record), *map(_as_plain, _tables(record))]
    if record.findings:
        parts.append("\n".join(["Findings", *(f"  * {f.text}" for f in record.findings)]))
    return "\n\n".join(parts) + "\n"


def as_markdown(table: Table) -> str:
    """A table for a model card; its heading is left out."""
    return str(tabulate(table.rows, table.columns, tablefmt="github", disable_numparse=True))


def _as_plain(table: Table) -> str:
    # The first column names, all others are figures.
    align = ("left", *("right" for _ in table.columns[1:]))
    text = tabulate(
        table.rows, table.columns, tablefmt="simple", colalign=align, disable_numparse=True
    )
    return f"{table.heading}\n{text}"


def _headline(record: OverlapRecord) -> str:
    lines = [
        f"{record.merge_method} over {record.base}: {len(record.agents)} agents, "
        f"{record.parameters:,} parameters, ε = {shown(record.epsilon)}"
    ]
    if record.sample is not None:
        lines.append(
            f"estimate from {record.sample.fraction:.3g} of the rows of every tensor "
            f"({record.sample.parameters:,} parameters, seed {record.sample.seed}); "
            "95 % intervals in brackets"
        )
    return "\n".join(lines)


def _tables(record: OverlapRecord) -> Iterable[Table]:
    yield agent_table(record)
    yield _degree_table(record)
    if any(agent.energy is not None for agent in record.agents):
        yield _kept_table(record)
    if record.pairwise:
        yield _pair_table(record)
        yield _angle_table(record)
    yield _tensor_table(record)
    yield _layer_table(record)
    if record.thresholds is not None:
        yield _threshold_table(record)


def agent_table(record: OverlapRecord) -> Table:
    """Density, counts, ρ_t and λ_t per agent."""
    rows = [
        (
            agent.model,
            _estimate(agent, "density", percent),
            _estimate(agent, "unique", whole),
            _estimate(agent, "shared", whole),
            _ratio(agent),
            _with_interval(shown(agent.rescale, ".3f"), agent.interval, "rescale", factor),
            "yes" if agent.clipped else "no",
        )
        for agent in record.agents
    ]
    columns = ("agent", "density", "unique", "shared", "ρ", "λ", "clipped")
    return _table(record, "What each agent changed", columns, rows)


def _degree_table(record: OverlapRecord) -> Table:
    others = range(len(record.agents))
    titles = ["it alone", *(f"with {n} other{'s' if n > 1 else ''}" for n in others[1:])]
    rows = [
        (
            agent.model,
            *(
                _with_interval(percent(share), agent.interval, f"overlap_share.{others}", percent)
                for others, share in enumerate(agent.overlap_share)
            ),
        )
        for agent in record.agents
    ]
    padded = [row + (ABSENT,) * (len(titles) + 1 - len(row)) for row in rows]
    return _table(record, "Of its changed parameters, changed by", ("agent", *titles), padded)


def _kept_table(record: OverlapRecord) -> Table:
    rows = [
        (
            agent.model,
            *(
                _estimate(agent, name, factor)
                for name in (
                    "retained_mean",
                    "retained_ram",
                    "retained_ram_plus",
                    "whole_rescale",
                    "realised_rescale",
                )
            ),
            _estimate(agent, "rescale_effect", percent),
        )
        for agent in record.agents
    ]
    columns = (
        "agent",
        "by mean",
        "by ram",
        "by ram_plus",
        "λ for 1",
        f"λ in {record.out_dtype}",
        "unique values it changes",
    )
    return _table(record, "What the merge keeps of its update (1 = whole)", columns, rows)


def _pair_table(record: OverlapRecord) -> Table:
    def cell(pair: PairRecord) -> str:
        return f"{_estimate(pair, 'jaccard', factor)} ({_estimate(pair, 'both', whole)})"

    return _matrix(record, "Changed by both: Jaccard index (parameters)", cell)


def _angle_table(record: OverlapRecord) -> Table:
    def cell(pair: PairRecord) -> str:
        conflicts = _estimate(pair, "sign_conflicts", percent)
        return f"{_estimate(pair, 'cosine', factor)} ({conflicts})"

    return _matrix(record, "There: cosine of the task vectors (opposite signs)", cell)


def _matrix(record: OverlapRecord, heading: str, cell: Callable[[PairRecord], str]) -> Table:
    """Agents by agents; columns are numbered as the rows are, the lower half alone is filled."""
    pairs = {frozenset((p.first, p.second)): p for p in record.pairwise or ()}
    names = [agent.model for agent in record.agents]
    rows = []
    for number, name in enumerate(names):
        cells = [cell(pairs[frozenset((name, other))]) for other in names[:number]]
        filler = [""] * (len(names) - 1 - number)
        rows.append((f"{number + 1} {name}", *cells, *filler))
    columns = ("agent", *(str(number + 1) for number in range(len(names) - 1)))
    return _table(record, heading, columns, [row[: len(columns)] for row in rows])


def _tensor_table(record: OverlapRecord) -> Table:
    ranked = sorted(record.tensors, key=lambda tensor: (-tensor.change, tensor.name))[:TOP]
    rows = [(tensor.name, _estimate(tensor, "change", percent)) for tensor in ranked]
    return _table(record, "Tensors with the most change", ("tensor", "changed"), rows)


def _layer_table(record: OverlapRecord) -> Table:
    ranked = sorted(record.layers, key=lambda layer: -layer.change)[:TOP]
    rows = [(layer.name, _estimate(layer, "change", percent)) for layer in ranked]
    return _table(record, "Layers with the most change", ("layer", "changed"), rows)


def _threshold_table(record: OverlapRecord) -> Table:
    rows = [
        (
            agent.model,
            f"{threshold.epsilon:g}",
            _estimate(agent, "density", percent),
            _estimate(agent, "unique_share", percent),
            _ratio(agent),
            _estimate(agent, "rescale", factor),
        )
        for agent_number in range(len(record.agents))
        for threshold in record.thresholds or ()
        for agent in [threshold.agents[agent_number]]
    ]
    columns = ("agent", "ε", "density", "unique", "ρ", "λ")
    return _table(record, "By threshold", columns, rows)


def _table(
    record: OverlapRecord, heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> Table:
    kind = " (estimate)" if record.sample is not None else ""
    return Table(heading + kind, tuple(columns), tuple(tuple(row) for row in rows))


def _ratio(figure: AgentRecord | ThresholdAgent) -> str:
    """ρ, of which null is infinite."""
    if figure.overlap_unique_ratio is None:
        return INFINITE
    return _estimate(figure, "overlap_unique_ratio", ratio)


def _estimate(figure: Any, name: str, form: Callable[[float], str]) -> str:
    value = getattr(figure, name)
    text = ABSENT if value is None else form(value)
    return _with_interval(text, figure.interval, name, form)


def _with_interval(
    text: str, intervals: dict[str, Interval] | None, name: str, form: Callable[[float], str]
) -> str:
    if intervals is None or name not in intervals:
        return text
    low, high = intervals[name]
    return f"{text} [{form(low)}, {form(high)}]"


def shown(value: Setting, form: str = "g") -> str:
    """A number, or the range of several."""
    if isinstance(value, tuple):
        return f"{value[0]:{form}} to {value[-1]:{form}}" if value else ABSENT
    return f"{value:{form}}"


def percent(value: float) -> str:
    """A share as a percentage."""
    return f"{100 * value:.2f} %"


def whole(value: float) -> str:
    """A count with its thousands apart."""
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


def factor(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"
