"""Sums over the parameters of a tensor, piece by piece.

A *piece* is a stretch of consecutive elements whose sums are kept apart: the rows of one group of
a sample, or the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mergekit_ram.kernels.chunks import Chunk

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


ENERGIES = ("energy", "unique_energy", "shared_energy", "mean_energy")
"""Of every agent: E = Σ τ² over its active parameters; U = Σ τ² over its unique ones; S = Σ m · τ
over its shared ones, m what the merge adds there; Σ τ̄ · τ over its active ones, τ̄ the mean of
all task vectors."""

PAIRS = ("both", "dot", "square", "agreement")
"""Of agents a and b, 0 where they are the same: the parameters that both changed; over those,
Σ τ_a · τ_b and Σ τ_a²; how many of them move the same way, less how many do not."""

REALISED = ("step", "changed")
"""Of every agent: Σ (out − base) · τ over its unique parameters; those of them whose stored value
differs from the one that λ = 1 gives."""


@dataclass(frozen=True)
class Observed:
    """What there is to see in one tensor before λ is known, for P pieces and N agents."""

    numels: tuple[int, ...]
    """Of the pieces."""
    degree: Counts
    """``[P, thresholds, N, N]`` active parameters by agent and overlap count."""
    energies: Array
    """``[P, 4, N]``; see :data:`ENERGIES`."""
    pairs: Array
    """``[P, 4, N, N]``; see :data:`PAIRS`."""

    def part(self, pieces: slice) -> Observed:
        """The same of some of the pieces."""
        return Observed(
            self.numels[pieces], self.degree[pieces], self.energies[pieces], self.pairs[pieces]
        )


@dataclass(frozen=True)
class Edges:
    """The pieces that one chunk has a part of."""

    first: int
    places: Counts
    """In the chunk, where they begin, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.places) - 1


class Pieces:
    """The pieces of one tensor, by their sizes."""

    def __init__(self, numels: Sequence[int]):
        self.numels = tuple(numels)
        self._ends = np.cumsum((0, *numels), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.numels)

    def within(self, chunk: Chunk) -> Edges:
        """Where they lie in a chunk."""
        first = int(np.searchsorted(self._ends, chunk.start, side="right")) - 1
        stop = int(np.searchsorted(self._ends, chunk.stop, side="left"))
        places = self._ends[first : stop + 1] - chunk.start
        return Edges(first, np.clip(places, 0, chunk.length))
