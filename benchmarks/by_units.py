"""What merging by units costs and gains: ``python benchmarks/by_units.py --help``."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import yaml
from checkpoints import DENSITIES, SHAPES, Checkpoints
from merging import PROBE_SECONDS, RAM_PLUS, process_status

COLUMNS = "{:<32} {:>9} {:>16} {:>22}"
SCRIPTS = Path(sys.executable).parent
WHOLE = "mergekit-yaml"


@dataclass(frozen=True)
class Run:
    """Seconds of one command, and the most anonymous bytes that one of its processes held."""

    seconds: float
    anonymous: int


@click.command(context_settings={"show_default": True})
@click.option("--size", type=click.Choice(list(SHAPES)), default="2B", help="Model to make.")
@click.option("--shard", default="500M", help="--out-shard-size of every command.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Runs of each, in turns.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()) / "mergekit-ram-benchmark",
    help="Where the models and the merges go; models are kept for the next run.",
)
def main(size: str, shard: str, rounds: int, folder: Path) -> None:
    """Time ram_plus by mergekit-yaml and by units, whole commands with their imports.

    Prints the medians, and of every command the most anonymous memory of one of its processes:
    mapped pages of the models do not count.
    """
    agents = len(DENSITIES)
    checkpoints = Checkpoints(SHAPES[size], DENSITIES, "bfloat16")
    models = folder / checkpoints.folder_name(size)
    parameters = checkpoints.make(models)
    recipe, out = folder / "recipe.yml", folder / "out"
    recipe.write_text(yaml.safe_dump(RAM_PLUS.recipe(models, agents)))
    end = [str(recipe), str(out), "--no-copy-tokenizer", "--out-shard-size", shard, "--quiet"]
    commands = {WHOLE: [str(SCRIPTS / "mergekit-yaml"), *end]}
    for workers in (1, 2):
        by_units = [str(SCRIPTS / "mergekit-ram"), "merge", *end, "--workers", str(workers)]
        commands[f"mergekit-ram merge --workers {workers}"] = by_units
    runs: dict[str, list[Run]] = {label: [] for label in commands}
    for number in range(rounds):
        for label, command in commands.items():
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            runs[label].append(_run(command))
        click.echo(f"round {number + 1} of {rounds} done", err=True)
    click.echo(f"{parameters / 1e9:.3g}B parameters, bfloat16, base and {agents} agents\n")
    click.echo(COLUMNS.format("", "seconds", f"x {WHOLE}", "anonymous, a process"))
    medians = {
        label: statistics.median(run.seconds for run in found) for label, found in runs.items()
    }
    for label, found in runs.items():
        click.echo(
            COLUMNS.format(
                label,
                f"{medians[label]:.2f}",
                f"{medians[label] / medians[WHOLE]:.2f}",
                f"{max(run.anonymous for run in found) / 1e6:,.0f} MB",
            )
        )


def _run(command: list[str]) -> Run:
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    anonymous = 0
    while process.poll() is None:
        for pid in _family(process.pid):
            anonymous = max(anonymous, process_status(pid).get("RssAnon", 0))
        time.sleep(PROBE_SECONDS)
    if process.returncode:
        raise click.ClickException(f"{command[0]} ended with exit code {process.returncode}")
    return Run(time.perf_counter() - start, anonymous)


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        # Any of them may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                found.extend(map(int, task.read_text().split()))
    return found


if __name__ == "__main__":
    main()
