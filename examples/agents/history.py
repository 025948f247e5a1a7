"""How training went."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class History:
    """Mean reward of every step, and greedy validation accuracy by step."""

    rewards: list[float] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)
