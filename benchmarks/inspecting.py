"""How long inspecting takes beside merging: ``python benchmarks/inspecting.py --help``."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from checkpoints import SHAPES, Checkpoints
from merging import METHODS, seconds

DENSITIES = (0.032, 0.462, 0.543)
"""Shares of parameters that the paper's three agents changed."""

THRESHOLDS = (1e-7, 1e-6, 1e-4, 1e-3)
RAM_PLUS = next(method for method in METHODS if method.label == "ram_plus")
MERGING = RAM_PLUS.label

INSPECTIONS: dict[str, dict[str, Any]] = {
    "inspect": {},
    "inspect --no-realised": {"realised": False},
    "inspect, four --epsilon": {"epsilons": THRESHOLDS},
    "inspect --sample 0.01": {"sample": 0.01},
    "inspect --sample 0.01 --no-realised": {"sample": 0.01, "realised": False},
}
COLUMNS = "{:<36} {:>9} {:>11}"


@click.command(context_settings={"show_default": True})
@click.option("--size", type=click.Choice(list(SHAPES)), default="0.49B", help="Model to make.")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    help="Of all models.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Runs of each, in turns.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()) / "mergekit-ram-benchmark",
    help="Where the models and the merge go; models are kept for the next run.",
)
def main(size: str, dtype: str, rounds: int, folder: Path) -> None:
    """Time inspections, and the merge by ram_plus that they look ahead to.

    All run in this process, in turns, on the models of benchmarks/speed.py: the same random base
    and three agents. One run of each before the first round compiles the loops and fills the page
    cache. Planning is timed, imports are not. The median counts.
    """
    agents = len(DENSITIES)
    models = folder / f"{size}-{dtype}-{agents}-{'-'.join(f'{d:g}' for d in DENSITIES)}"
    parameters = Checkpoints(SHAPES[size], DENSITIES, dtype).make(models)
    times: dict[str, list[float]] = {label: [] for label in (MERGING, *INSPECTIONS)}
    for number in range(rounds + 1):
        for label, runs in times.items():
            if label == MERGING:
                runs.append(seconds(RAM_PLUS, models, agents, folder / "out", cold=False))
            else:
                runs.append(_inspected(models, agents, **INSPECTIONS[label]))
        click.echo(f"round {number} of {rounds} done", err=True)
    medians = {label: statistics.median(runs[1:]) for label, runs in times.items()}
    click.echo(f"{parameters / 1e9:.3g}B parameters, {dtype}, base and {agents} agents\n")
    click.echo(COLUMNS.format("", "seconds", f"x {MERGING}"))
    for label, median in medians.items():
        click.echo(COLUMNS.format(label, f"{median:.2f}", f"{median / medians[MERGING]:.2f}"))


def _inspected(models: Path, agents: int, **arguments: Any) -> float:
    """Seconds of one inspection of what ``ram_plus`` merges."""
    from mergekit.config import MergeConfiguration
    from mergekit.io.tasks import LoaderCache
    from mergekit.options import MergeOptions

    from mergekit_ram import inspect

    logging.disable(logging.INFO)
    LoaderCache.loaders.clear()
    config = MergeConfiguration.model_validate(RAM_PLUS.recipe(models, agents))
    start = time.perf_counter()
    inspect(config, MergeOptions(quiet=True), **arguments)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
