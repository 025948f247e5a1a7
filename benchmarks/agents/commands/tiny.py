"""The command ``tiny``: train, merge, measure, and write tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from options import count, output

from benchmarks.agents.running.packages import require
from benchmarks.agents.tiny.conditions import BY_NAME, CONDITIONS
from benchmarks.agents.tiny.effort import FULL, QUICK

NEEDED = ("trl", "datasets", "fusion_bench", "matplotlib")
RESULTS, TABLES, FIGURE = "results.json", "tables.md", "accuracy.svg"


@click.command()
@output(
    "agents-benchmark",
    "Folder for models, measurements and tables. What is finished in it is not done again.",
)
@count("--seeds", 5, "Bases to pretrain. Some conditions are measured on fewer (see their table).")
@click.option(
    "--condition",
    "names",
    type=click.Choice(list(BY_NAME)),
    multiple=True,
    help="How the agents come to be; give it several times for several. Default: all.",
)
@count(
    "--processes", 2, "Jobs at a time, each with one thread: the number of cores is a good value."
)
@click.option("--quick", is_flag=True, help="Do hardly any training or measuring; a minute.")
def tiny(output: Path, seeds: int, names: tuple[str, ...], processes: int, quick: bool) -> None:
    """Train tiny agents, merge them with RAM, RAM+ and every baseline, and write tables.

    Each seed gives a base, pretrained to answer three kinds of puzzles about half right, and
    three agents per condition, each trained on one puzzle. The merges are made by mergekit, and
    Fisher and WUDI merging by fusion-bench. Grids are tuned on validation prompts; all reported
    figures are of held-out prompts. OUTPUT/tables.md has the tables, OUTPUT/results.json every
    row they are made of, OUTPUT/accuracy.svg the figure.

    The first 16 sets of agents, of 26, took about half an hour on two CPU cores that nothing else
    used; an interrupted run goes on where it was. It needs

    \b
      pip install 'mergekit-ram[agents]'

    \b
    Only what agents on random subnetworks and supervised ones give, on two bases:
      python -m benchmarks.agents tiny --seeds 2 --condition subnetworks --condition supervised
    """
    require(NEEDED, "pip install 'mergekit-ram[agents]'")
    effort = QUICK if quick else FULL
    chosen = [condition for condition in CONDITIONS if not names or condition.name in names]
    from benchmarks.agents.tiny import models
    from benchmarks.agents.tiny.collect import collect
    from benchmarks.agents.tiny.mixtures import MIXTURES, MixtureJob
    from benchmarks.agents.tiny.study import StudyJob

    studies = [
        StudyJob(models.BaseJob(output, effort, condition.architecture, seed), condition)
        for condition in chosen
        for seed in range(min(seeds, condition.seeds))
    ]
    bases = {(study.condition.name, study.base) for study in studies}
    mixtures = [
        MixtureJob(base, mixture)
        for mixture in MIXTURES
        for base in dict.fromkeys(study.base for study in studies)
        if all((name, base) in bases for name, _ in mixture.members)
    ]
    seconds = _work(studies, mixtures, processes, output)
    _write(collect(studies, mixtures, seconds, processes), output)


def _work(
    studies: Sequence[Any], mixtures: Sequence[Any], processes: int, output: Path
) -> dict[str, float]:
    """Do the four stages; return the seconds that each has taken, earlier runs included."""
    from benchmarks.agents.running import workers
    from benchmarks.agents.tiny import mixtures as mixed
    from benchmarks.agents.tiny import models
    from benchmarks.agents.tiny.study import is_measured, measure

    bases = list(dict.fromkeys(study.base for study in studies))
    agents = [agent for study in studies for agent in study.agents.values()]
    stages: list[tuple[str, Callable[[Any], None], list[Any]]] = [
        ("bases", models.make, [job for job in bases if not models.is_made(job)]),
        ("agents", models.make, [job for job in agents if not models.is_made(job)]),
        ("merges", measure, [job for job in studies if not is_measured(job)]),
        ("mixtures", mixed.measure, [job for job in mixtures if not mixed.is_measured(job)]),
    ]
    with workers.Workers(processes, output) as pool:
        for title, work, jobs in stages:
            pool.run(work, jobs, title)
        return pool.seconds


def _write(collected: dict[str, Any], output: Path) -> None:
    from benchmarks.agents.findings.results import Results
    from benchmarks.agents.tables import document, figure

    (output / RESULTS).write_text(json.dumps(collected, ensure_ascii=False) + "\n")
    found = Results.read(output / RESULTS)
    (output / TABLES).write_text(document.standalone(found))
    figure.draw(found, output / FIGURE)
    click.echo(document.every_table(found)["accuracy"]())
    for name in (TABLES, RESULTS, FIGURE):
        click.echo(f"written: {output / name}")
