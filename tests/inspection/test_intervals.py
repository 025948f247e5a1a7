"""95 % intervals of a sample hold the truth, however the agents' updates lie in the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mergekit.merge_methods.base import PerInputValues, TensorGroup

from mergekit_ram.inspection import figures
from mergekit_ram.inspection.sample import Rows, Sample
from mergekit_ram.inspection.sums import Sums
from mergekit_ram.inspection.walk import SampledTensor

SHAPES = [(2048, 32), *[(512, 32), (32, 512), (64, 32)] * 2, *[(32,)] * 4]
DENSITIES = (0.05, 0.45, 0.55)
SEEDS = range(8)

Generator = torch.Generator
Pattern = Callable[[tuple[int, ...], float, Generator], torch.Tensor]


def rows_of(shape: tuple[int, ...], share: float, generator: Generator) -> torch.Tensor:
    chosen = torch.rand(shape[0], generator=generator) < share
    return chosen.view(-1, *[1] * (len(shape) - 1)).expand(shape)


def columns_of(shape: tuple[int, ...], share: float, generator: Generator) -> torch.Tensor:
    return (torch.rand(shape[-1], generator=generator) < share).expand(shape)


def anywhere(shape: tuple[int, ...], share: float, generator: Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator) < share


def normal(shape: tuple[int, ...], generator: Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * 1e-2


def cauchy(shape: tuple[int, ...], generator: Generator) -> torch.Tensor:
    return torch.empty(shape).cauchy_(generator=generator) * 1e-3


def lognormal(shape: tuple[int, ...], generator: Generator) -> torch.Tensor:
    sizes = torch.randn(shape, generator=generator).mul(2).exp()
    return normal(shape, generator) * sizes


def rows_of_many_sizes(shape: tuple[int, ...], generator: Generator) -> torch.Tensor:
    sizes = torch.randn(shape[0], generator=generator).mul(1.5).exp()
    return normal(shape, generator) * sizes.view(-1, *[1] * (len(shape) - 1))


def moved(where: Pattern, density: float = 1.0, size: Any = normal) -> Pattern:
    def updates(shape: tuple[int, ...], share: float, generator: Generator) -> torch.Tensor:
        return size(shape, generator) * where(shape, share * density, generator)

    return updates


PATTERNS: dict[str, Pattern] = {
    "anywhere": moved(anywhere),
    "hardly anywhere": moved(anywhere, 0.01),
    "columns": moved(columns_of),
    "rows": moved(rows_of),
    "few rows": moved(rows_of, 0.05),
    "one row in a thousand": moved(rows_of, 0.005),
    "heavy tails": moved(anywhere, size=cauchy),
    "lognormal": moved(anywhere, size=lognormal),
    "rows of many sizes": moved(anywhere, size=rows_of_many_sizes),
}


def merge_of(number: int) -> Any:
    """What figures ask of a planned merge."""
    own = {"weight": 1.0, "rescale": None}
    return SimpleNamespace(
        parameters={"r": 0.1, "alpha": 2.0, "scale": 1.0, "epsilon": 0.0},
        input_parameters=dict.fromkeys(range(1, 1 + len(DENSITIES)), own),
        output_weight=SimpleNamespace(name=f"tensor.{number}"),
        out_dtype="bfloat16",
    )


def model(pattern: Pattern) -> list[TensorGroup]:
    generator = torch.Generator().manual_seed(0)
    groups = []
    for number, shape in enumerate(SHAPES):
        base = torch.randn(shape, generator=generator) * 0.02
        agents = [base + pattern(shape, density, generator) for density in DENSITIES]
        groups.append(TensorGroup.from_tensors([base, *agents], base_index=0, name=f"{number}"))
    return groups


def records(groups: list[TensorGroup], sample: Sample | None) -> list[Any]:
    """The records of agents and pairs, then the change of every tensor and its interval."""
    agents = [entry.id for entry in groups[0].non_base]
    shared = {"epsilon": 0.0, "scale": 1.0, "overlap_power": 1.0, "r": 0.1, "alpha": 2.0}
    each = {"weight": 1.0, "rescale": None}
    settings = shared | {k: PerInputValues([(a, v) for a in agents]) for k, v in each.items()}
    tensors = []
    for number, group in enumerate(groups):
        rows = Rows.whole(group) if sample is None else sample.draw(group)
        size = group.entries[0].tensor.numel()
        tensors.append(SampledTensor(merge_of(number), size, rows, settings, None))
    sums = Sums([str(agent) for agent in agents], 1, sample is not None)
    for tensor in tensors:
        sums.add(tensor, tensor.observe(()), None)
    statistics = sums.statistics
    for tensor in tensors:
        sums.add_realised(tensor, tensor.realise(statistics))
    sums.add_unseen()
    places: Any = {str(agent): [(merge_of(0), agent)] for agent in agents}
    found: list[Any] = [*figures.agent_records(sums, places, "ram_plus")]
    found += figures.pair_records(sums)
    for tensor in sums.tensors:
        change = tensor.counts.changed / tensor.counts.numel
        record = figures.LayerRecord(name="x", numel=tensor.counts.numel, change=change)
        found.append(figures._with_interval(record, [tensor]))
    return found


def held(estimates: list[Any], truths: list[Any]) -> Iterator[tuple[str, bool | None]]:
    """For every interval, whether the truth lies in it; None where it is unknown."""
    for estimate, truth in zip(estimates, truths, strict=True):
        for field, interval in estimate.interval.items():
            name, _, place = field.partition(".")
            true = getattr(truth, name)
            true = true[int(place)] if place and true else true
            if interval is None:
                yield name, None
            elif true is not None and true != ():
                yield name, interval[0] <= true <= interval[1]


def seen(pattern: str, fraction: float) -> dict[str, list[bool | None]]:
    groups = model(PATTERNS[pattern])
    truths = records(groups, None)
    found: dict[str, list[bool | None]] = defaultdict(list)
    for seed in SEEDS:
        for name, is_held in held(records(groups, Sample(fraction, seed)), truths):
            found[name].append(is_held)
    return found


@pytest.mark.parametrize("fraction", [0.02, 0.2])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_intervals_hold_the_truth_or_are_unknown(pattern: str, fraction: float):
    found = seen(pattern, fraction)
    shares = {name: 1 - all_held.count(False) / len(all_held) for name, all_held in found.items()}
    assert {"density", "rescale", "retained_ram_plus", "jaccard", "change"} <= shares.keys()
    assert min(shares.values()) >= 0.95, shares


def test_figures_of_updates_that_lie_anywhere_are_known():
    found = seen("anywhere", 0.2)
    assert all(None not in all_held for all_held in found.values())
