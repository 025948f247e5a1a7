"""How much of what an agent changed is nothing but the rounding of its weights.

An agent that was saved in bfloat16 differs from a float32 base almost everywhere, wherever its
training changed nothing as well. The same holds where it was converted to float32 again later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mergekit_ram.inspection.walk import SampledTensor
from mergekit_ram.record.schema import Finding
from mergekit_ram.tensors import agent_name, base_of

NARROW = (torch.bfloat16, torch.float16)
"""What weights are rounded to on their way."""

CHUNK = 2**22
"""Parameters that are compared at once."""


@dataclass
class _Seen:
    active: int = 0
    explained: int = 0
    """Active ones whose value is that of the base, rounded."""
    is_exact: bool = True
    """All values of the agent are such as the narrow dtype holds."""

    def compare(
        self, base: torch.Tensor, agent: torch.Tensor, narrow: torch.dtype, epsilon: float
    ) -> None:
        """Look at some values of an agent, and at the base's."""
        rounded = agent.to(narrow)
        if not torch.equal(rounded.to(agent.dtype), agent):
            self.is_exact = False
            return
        wide = torch.float64 if torch.float64 in (base.dtype, agent.dtype) else torch.float32
        active = (agent.to(wide) - base.to(wide)).abs() > epsilon
        self.active += int(active.sum())
        self.explained += int((active & (rounded == base.to(narrow))).sum())


class RoundedShares:
    """Counts what rounding explains, tensor by tensor, where the base is stored wider."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, torch.dtype], _Seen] = {}

    def add(self, tensor: SampledTensor) -> None:
        """Compare the agents' values of one tensor with the base's."""
        base = base_of(tensor.rows.group).tensor.flatten()
        for narrow in NARROW:
            if torch.finfo(tensor.dtype or base.dtype).eps >= torch.finfo(narrow).eps:
                continue
            for entry in tensor.agents:
                seen = self._seen.setdefault((agent_name(entry.id), narrow), _Seen())
                agent = entry.tensor.flatten()
                for start in range(0, len(base) if seen.is_exact else 0, CHUNK):
                    part = slice(start, start + CHUNK)
                    seen.compare(base[part], agent[part], narrow, tensor.settings["epsilon"])

    def findings(self) -> Iterator[Finding]:
        """One finding per agent that was rounded."""
        for (agent, narrow), seen in self._seen.items():
            if not seen.is_exact or not seen.explained:
                continue
            name = str(narrow).split(".")[-1]
            share = 100 * seen.explained / seen.active
            yield Finding(
                code="rounding-explained",
                text=f"Of what {agent} changed, {share:.3g} % is the base rounded to {name} and "
                f"nothing else: all its values are such as {name} holds, and the base is stored "
                f"wider. `dtype: {name}` rounds the base as well.",
            )
