"""Rounding that a merge would take for an update, or that takes an update away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from mergekit.common import dtype_from_name
from mergekit.io.tasks import LoaderCache

from mergekit_ram.merges.loads import Load
from mergekit_ram.merges.notes import Note
from mergekit_ram.models.checkpoints import TensorHeader

PROBES = 3
"""Matrices of a base whose values are looked at."""

Dtypes = tuple[torch.dtype, torch.dtype]


class Rounding:
    """The dtypes of a plan's models, seen tensor by tensor."""

    def __init__(self) -> None:
        self._wider: dict[tuple[str, str], Dtypes] = {}
        self._narrowed: dict[str, Dtypes] = {}
        self._bases: set[str] = set()
        self._whole: set[str] = set()
        self._probes: dict[str, list[tuple[int, Load]]] = {}

    def look(self, base: str, loads: Sequence[Load], present: Mapping[str, TensorHeader]) -> None:
        """Compare the dtypes in which one tensor is stored and loaded."""
        loaded = {
            load.model: dtype_from_name(load.dtype) or present[load.model].dtype
            for load in loads
            if load.model in present and present[load.model].dtype.is_floating_point
        }
        for load in loads:
            if load.model not in loaded:
                continue
            stored, wanted = present[load.model].dtype, loaded[load.model]
            if load.model == base:
                self._bases.add(base)
                self._remember(load, present[base])
            elif base in loaded and _is_finer(loaded[base], wanted):
                self._wider.setdefault((base, load.model), (loaded[base], wanted))
            if _loses(stored, wanted):
                self._narrowed.setdefault(load.model, (stored, wanted))
            elif load.model != base:
                self._whole.add(load.model)

    def _remember(self, load: Load, header: TensorHeader) -> None:
        """Keep the smallest matrices of a base, to look at their values."""
        if len(header.shape) > 1 and load.reference is not None:
            probes = self._probes.setdefault(load.model, [])
            probes.append((torch.Size(header.shape).numel(), load))
            probes.sort(key=lambda probe: probe[0])
            del probes[PROBES:]

    def _is_exact(self, base: str, narrow: torch.dtype) -> bool:
        """Whether a base holds values that the narrow dtype holds too, as after a conversion."""
        probes = self._probes.get(base, [])
        return bool(probes) and all(_holds(load, narrow) for _, load in probes)

    def notes(self) -> Iterator[Note]:
        """A base stored wider than its agents, and models that ``dtype:`` rounds.

        Rounding a base to the dtype in which its agents are stored is what makes them
        comparable, so that nothing is said against it.
        """
        by_base: dict[tuple[str, Dtypes], list[str]] = {}
        for (base, agent), dtypes in self._wider.items():
            by_base.setdefault((base, dtypes), []).append(agent)
        for (base, (wide, narrow)), agents in by_base.items():
            if self._is_exact(base, narrow):
                continue
            yield Note(
                "base-stored-wider",
                f"the base {base} is stored in {wide} and {', '.join(agents)} in {narrow}: where "
                "an agent changed nothing, it differs from the base by its rounding, and counts "
                f"as active. `dtype: {_name(narrow)}` rounds the base as the agents were rounded",
            )
        for model, (stored, wanted) in self._narrowed.items():
            if model in self._bases and self._whole:
                continue
            yield Note(
                "inputs-rounded",
                f"model {model}: stored in {stored} and rounded to {wanted} by `dtype:` before it "
                "is subtracted from the base, so that small updates vanish; use `out_dtype:` to "
                "round the result instead",
            )


def _loses(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether values of one dtype are rounded in another one."""
    return stored.is_floating_point and torch.promote_types(wanted, stored) != wanted


def _is_finer(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether neighbouring values of one dtype are closer together than those of another."""
    return torch.finfo(one).eps < torch.finfo(other).eps


def _holds(load: Load, narrow: torch.dtype) -> bool:
    assert load.reference is not None
    loader = LoaderCache().get(load.reference)
    names = [name for name in load.names if name in load.index.tensor_paths]
    if not names:
        return False
    tensor = loader.get_tensor(names[0])
    return tensor is not None and torch.equal(tensor.to(narrow).to(tensor.dtype), tensor)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[-1]
