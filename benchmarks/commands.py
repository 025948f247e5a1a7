"""What whole commands take, also with less memory than models: ``commands.py --help``."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import yaml
from checkpoints import DENSITIES, SHAPES, Checkpoints
from merging import METHODS, RAM_PLUS, drop_cached_pages

COLUMNS = "{:<24} {:>9} {:>9} {:>9} {:>9}"
SCRIPTS = Path(sys.executable).parent
LIMIT = "memory.limit_in_bytes"
CGROUPS = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True)
class Run:
    """Seconds of one command, and the bytes that it read from the disk."""

    seconds: float
    read: int


@click.command(context_settings={"show_default": True})
@click.option("--size", type=click.Choice(list(SHAPES)), default="2B", help="Model to make.")
@click.option("--shard", default="500M", help="--out-shard-size of every command.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Runs of each, in turns.")
@click.option("--memory", type=float, help="GB for a command and the page cache, by a cgroup.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()) / "mergekit-ram-benchmark",
    help="Where the models and the merges go; models are kept for the next run.",
)
def main(size: str, shard: str, rounds: int, memory: float | None, folder: Path) -> None:
    """Time linear, ram and ram_plus by mergekit-yaml and ram_plus by units, with their imports.

    Prints medians of seconds and of bytes read from the disk. With --memory the models are dropped
    from the page cache before every command, and cannot all return to it.
    """
    agents = len(DENSITIES)
    checkpoints = Checkpoints(SHAPES[size], DENSITIES, "bfloat16")
    models = folder / checkpoints.folder_name(size)
    parameters = checkpoints.make(models)
    out = folder / "out"
    end = [str(out), "--no-copy-tokenizer", "--out-shard-size", shard, "--quiet"]
    commands = {}
    for method in METHODS[:3]:
        recipe = folder / f"{method.label}.yml"
        recipe.write_text(yaml.safe_dump(method.recipe(models, agents)))
        commands[method.label] = [str(SCRIPTS / "mergekit-yaml"), str(recipe), *end]
    for workers in (1, 2):
        by_units = [str(SCRIPTS / "mergekit-ram"), "merge", str(folder / "ram_plus.yml"), *end]
        commands[f"{RAM_PLUS.label}, --workers {workers}"] = [*by_units, "--workers", str(workers)]
    runs: dict[str, list[Run]] = {label: [] for label in commands}
    with _group(memory) as group:
        for number in range(rounds):
            for label, command in commands.items():
                shutil.rmtree(out, ignore_errors=True)
                os.sync()
                if memory is not None:
                    drop_cached_pages(models)
                runs[label].append(_run(command, group))
            click.echo(f"round {number + 1} of {rounds} done", err=True)
    click.echo(f"{parameters / 1e9:.3g}B parameters, bfloat16, base and {agents} agents\n")
    click.echo(COLUMNS.format("", "seconds", "x linear", "read", "x linear"))
    linear = _median(runs["linear"])
    for label, found in runs.items():
        run = _median(found)
        seconds = f"{run.seconds:.2f}", f"{run.seconds / linear.seconds:.2f}"
        read = f"{run.read / 1e9:.2f} GB", f"{run.read / max(linear.read, 1):.2f}"
        click.echo(COLUMNS.format(label, *seconds, *read))


def _median(runs: list[Run]) -> Run:
    seconds, read = ([getattr(run, name) for run in runs] for name in ("seconds", "read"))
    return Run(statistics.median(seconds), int(statistics.median(read)))


@contextlib.contextmanager
def _group(memory: float | None) -> Iterator[Path | None]:
    """A control group (version 1) of processes that have so many GB together; None without."""
    if memory is None:
        yield None
        return
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [path for _, controllers, path in own if controllers == "memory"]
    group = CGROUPS / "".join(paths).lstrip("/") / f"benchmark-{os.getpid()}"
    try:
        group.mkdir()
        (group / LIMIT).write_text(str(int(memory * 1e9)))
    except OSError as error:
        message = f"--memory: cannot make the memory group {group}: {error}. Run as root."
        raise click.ClickException(message) from None
    try:
        yield group
    finally:
        group.rmdir()


def _run(command: list[str], group: Path | None) -> Run:
    start, before = time.perf_counter(), _read_bytes()
    enter = f"echo $$ > {group}/cgroup.procs && " if group else ""
    shell = ["sh", "-c", f'{enter}exec "$@"', "sh", *command]
    subprocess.run(shell, stdout=subprocess.DEVNULL, check=True)
    return Run(time.perf_counter() - start, _read_bytes() - before)


def _read_bytes() -> int:
    """What this process and its ended children have read from disks."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


if __name__ == "__main__":
    main()
