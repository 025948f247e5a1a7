"""``ram_directions`` on one matrix beside WUDI, which minimises the same criterion by steps, and
beside what this machine's matrix product reaches: ``python benchmarks/directions.py --help``."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import click
import torch

from mergekit_ram.kernels.directions import merge
from mergekit_ram.kernels.solutions import fewest_operations

EPSILON = 1e-5
BASE_SPREAD = 0.02
STEP_SPREAD = 2e-4
WUDI_STEPS = 300
"""fusion-bench's default; its time is that of a step, so many times."""

PRODUCT_SIDE = 1024


@click.command(context_settings={"show_default": True})
@click.option("--out", "rows", default=4864, help="Rows of the matrix.")
@click.option("--in", "columns", default=896, help="Its columns.")
@click.option("--agents", default=3, help="How many.")
@click.option("--steps", default=4, help="Of WUDI that are run, to time one.")
@click.option("--rounds", default=5, help="Runs of each, in turns.")
@click.option("--threads", default=0, help="Of torch; 0: as it chooses.")
@click.option("--cuda", is_flag=True, help="On the GPU.")
def main(
    rows: int, columns: int, agents: int, steps: int, rounds: int, threads: int, cuda: bool
) -> None:
    """Time the merge of one bfloat16 matrix, round after round beside the others.

    \b
      ram_directions  seconds, and GFLOP/s of its products
      torch.mm        GFLOP/s of a product of two square float32 matrices
      WUDI            fusion-bench's, seconds of a step times its default of 300 steps
    """
    if threads:
        torch.set_num_threads(threads)
    device = torch.device("cuda" if cuda else "cpu")
    base, models = _models(rows, columns, agents, device)
    deltas = [{"weight": model.float() - base.float()} for model in models]
    square = torch.randn(PRODUCT_SIDE, PRODUCT_SIDE, device=device)
    works: dict[str, Callable[[], object]] = {
        "ram_directions": lambda: merge(base, models, epsilon=EPSILON),
        "torch.mm": lambda: square @ square,
        "WUDI": lambda: _wudi(deltas, device, steps),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + rounds):
        for name, work in works.items():
            times[name].append(_seconds(work, device))
    # The first round warms up.
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    own = medians["ram_directions"]
    speed = fewest_operations(agents, rows, columns) / own / 1e9
    reached = 2 * PRODUCT_SIDE**3 / medians["torch.mm"] / 1e9
    wudi = medians["WUDI"] / steps * WUDI_STEPS
    click.echo(f"{rows} x {columns}, {agents} agents, {torch.get_num_threads()} threads, {device}")
    click.echo(f"ram_directions  {own:8.3f} s  {speed:7.1f} GFLOP/s")
    click.echo(
        f"torch.mm                    {reached:7.1f} GFLOP/s, of which {speed / reached:.0%}"
    )
    click.echo(f"WUDI            {wudi:8.3f} s, {wudi / own:.0f} times as long")


def _models(
    rows: int, columns: int, agents: int, device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(rows, columns, generator=generator) * BASE_SPREAD
    steps = [torch.randn(rows, columns, generator=generator) * STEP_SPREAD for _ in range(agents)]
    return base.bfloat16().to(device), [(base + step).bfloat16().to(device) for step in steps]


def _wudi(deltas: list[dict[str, torch.Tensor]], device: torch.device, steps: int) -> None:
    from fusion_bench.method.wudi import wudi_merging

    # It reports every tensor and step.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        wudi_merging(deltas, str(device), iter_num=steps)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
