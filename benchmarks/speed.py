"""How long every method takes and how much memory: ``python benchmarks/speed.py --help``."""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from checkpoints import DENSITIES, SHAPES, Checkpoints
from merging import LOOKS, METHODS, Look, Memory, Method, memory, seconds
from reach import reach

LABELS = tuple(method.label for method in METHODS)
DTYPES = ("bfloat16", "float16", "float32")
COLUMNS = "{:<23} {:>9} {:>9} {:>9} {:>10} {:>10}"


@click.command(context_settings={"show_default": True})
@click.option("--size", type=click.Choice(list(SHAPES)), default="0.49B", help="Model to make.")
@click.option("--agents", type=click.IntRange(min=1), default=3, help="How many agents to merge.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", help="Of all models.")
@click.option(
    "--method",
    "labels",
    type=click.Choice(LABELS),
    multiple=True,
    default=LABELS,
    help="Methods to run; linear always runs, since the others are compared with it.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Runs of each, in turns.")
@click.option("--cuda", is_flag=True, help="Merge on the GPU, as mergekit-yaml --cuda does.")
@click.option("--cold", is_flag=True, help="Drop the inputs from the page cache before each run.")
@click.option("--with-memory/--no-memory", default=True, help="Measure memory too.")
@click.option(
    "--with-reach/--no-reach",
    default=True,
    help="Inspect too, and print the ratios that this package is held to.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()) / "mergekit-ram-benchmark",
    help="Where the models and the merges go; models are kept for the next run.",
)
def main(
    size: str,
    agents: int,
    dtype: str,
    labels: tuple[str, ...],
    rounds: int,
    cuda: bool,
    cold: bool,
    with_memory: bool,
    with_reach: bool,
    folder: Path,
) -> None:
    """Time merges of a random base and its agents, and print a table.

    Makes the models it needs, merges them with every method through mergekit's own run_merge
    in this process, method after method and round after round, and prints

    \b
      seconds    median over the rounds, from planning to the last byte written
      x linear   these seconds divided by those of linear
      GB/s       bytes of all models, as often as the method reads them, plus the output's
      anonymous  peak of RssAnon in a fresh process; mapped file pages do not count
      resident   peak RSS of the same process; mapped file pages do count

    Examples:

    \b
      python benchmarks/speed.py
      python benchmarks/speed.py --method ram --method ram_plus --rounds 7
      python benchmarks/speed.py --agents 8 --method ram_plus
      python benchmarks/speed.py --size 0.05B --dtype float32 --cold
      python benchmarks/speed.py --cuda

    "inspect" is the inspection of the merge by ram_plus. Below stand the ratios that this package
    is held to, measured in the same run.
    """
    densities = tuple(DENSITIES[number % len(DENSITIES)] for number in range(agents))
    checkpoints = Checkpoints(SHAPES[size], densities, dtype)
    models = folder / checkpoints.folder_name(size)
    parameters = checkpoints.make(models)
    methods = [method for method in METHODS if method.label in {"linear", *labels}]

    looks = LOOKS if with_reach else ()
    times: dict[str, list[float]] = {row.label: [] for row in (*methods, *looks)}
    for number in range(rounds):
        # Whoever writes first finds the disk idle.
        first = number % len(methods)
        for method in methods[first:] + methods[:first]:
            taken = seconds(method, models, agents, folder / "out", cold=cold, cuda=cuda)
            times[method.label].append(taken)
        for look in looks:
            times[look.label].append(look.seconds(models, agents, cold=cold, cuda=cuda))
        click.echo(f"round {number + 1} of {rounds} done", err=True)
    memories = {}
    if with_memory:
        memories = {m.label: memory(m, models, agents, folder / "out", cuda=cuda) for m in methods}

    click.echo(
        f"{parameters / 1e9:.3g}B parameters, {dtype}, base and {agents} agents, "
        f"{'cold' if cold else 'warm'} page cache, {rounds} rounds\n{_machine()}\n"
    )
    written = sum(file.stat().st_size for file in models.glob("base/*.safetensors"))
    medians = {label: statistics.median(runs) for label, runs in times.items()}
    click.echo(_table(methods, looks, medians, memories, (written * (agents + 1), written)))
    if with_reach:
        anonymous = {label: used.anonymous for label, used in memories.items()}
        click.echo(f"\n{reach(medians, anonymous)}")


def _table(
    methods: list[Method],
    looks: Sequence[Look],
    medians: dict[str, float],
    memories: dict[str, Memory],
    model_bytes: tuple[int, int],
) -> str:
    read, written = model_bytes
    lines = [COLUMNS.format("method", "seconds", "x linear", "GB/s", "anonymous", "resident")]
    for method in methods:
        median = medians[method.label]
        used = memories.get(method.label)
        lines.append(
            COLUMNS.format(
                method.label,
                f"{median:.2f}",
                f"{median / medians['linear']:.2f}",
                f"{(read * method.passes + written) / median / 1e9:.2f}",
                f"{used.anonymous / 1e6:,.0f} MB" if used else "-",
                f"{used.resident / 1e6:,.0f} MB" if used else "-",
            )
        )
    for look in looks:
        median = medians[look.label]
        figures = (f"{median:.2f}", f"{median / medians['linear']:.2f}", "-", "-", "-")
        lines.append(COLUMNS.format(look.label, *figures))
    return "\n".join(lines)


def _machine() -> str:
    import torch

    processor = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = (line for line in info.read_text().splitlines() if line.startswith("model name"))
        processor = next(names, processor).split(":")[-1].strip()
    return f"{processor}, {torch.get_num_threads()} threads, torch {torch.__version__}"


if __name__ == "__main__":
    main()
