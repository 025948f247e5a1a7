"""Small tensors are looked at together: a call takes longer than a few rows of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from mergekit_ram.inspection.drawn import DrawnTensor
from mergekit_ram.kernels import energies
from mergekit_ram.kernels.blocks import REFUSALS, one_thread
from mergekit_ram.kernels.energies import Array, Observed
from mergekit_ram.kernels.recipe import Recipe

T = TypeVar("T")

TOGETHER = 2**18
"""Elements of every model at most; a larger tensor is looked at alone."""


@dataclass(frozen=True)
class Batch:
    """Consecutive tensors of the same agents, for all of which one recipe holds."""

    recipe: Recipe
    tensors: tuple[DrawnTensor, ...]

    def observe(self, thresholds: Sequence[float]) -> list[Observed]:
        """What there is to see in every tensor before λ is known, further ε included."""

        def look(base: torch.Tensor, *agents: torch.Tensor, numels: Sequence[int]) -> Observed:
            return energies.observe(self.recipe, base, agents, thresholds=thresholds, numels=numels)

        seen = self._look(look)
        return [seen.part(pieces) for pieces in self._pieces()]

    def realise(self) -> list[Array]:
        """What the rounding of every merged tensor leaves of λ."""

        def look(base: torch.Tensor, *agents: torch.Tensor, numels: Sequence[int]) -> Array:
            return energies.realise(self.recipe, base, agents, numels=numels)

        seen = self._look(look)
        return [seen[pieces] for pieces in self._pieces()]

    def _pieces(self) -> Iterator[slice]:
        """Where those of every tensor lie among those of all."""
        stop = 0
        for tensor in self.tensors:
            start, stop = stop, stop + len(tensor.drawn.numels)
            yield slice(start, stop)

    def _look(self, look: Callable[..., T]) -> T:
        if len(self.tensors) == 1:
            (tensor,) = self.tensors
            with tensor.named_errors():
                return look(*tensor.tensors, numels=tensor.drawn.numels)
        columns = zip(*(tensor.tensors for tensor in self.tensors), strict=True)
        # So few elements are copied before a second thread is awake.
        with one_thread():
            joined = [torch.cat([part.flatten() for part in column]) for column in columns]
        numels = [numel for tensor in self.tensors for numel in tensor.drawn.numels]
        try:
            return look(*joined, numels=numels)
        except REFUSALS:
            # Alone, the one that is wrong says which it is.
            for tensor in self.tensors:
                Batch(self.recipe, (tensor,))._look(look)
            raise


def in_batches(
    tensors: Iterable[DrawnTensor], recipe_for: Callable[[DrawnTensor], Recipe]
) -> Iterator[Batch]:
    """All of them in their order, small ones together where one recipe holds for them."""
    pending: list[DrawnTensor] = []
    shared: Recipe | None = None
    size = 0
    for tensor in tensors:
        recipe = recipe_for(tensor)
        fits = recipe == shared and size + tensor.seen <= TOGETHER
        if shared is not None and pending and not (fits and tensor.is_like(pending[0])):
            yield Batch(shared, tuple(pending))
            pending, size = [], 0
        pending.append(tensor)
        shared, size = recipe, size + tensor.seen
        if size >= TOGETHER:
            # At once, so that no large tensor waits for the next one to be loaded.
            yield Batch(recipe, tuple(pending))
            pending, size = [], 0
    if shared is not None and pending:
        yield Batch(shared, tuple(pending))
