"""Commands of the benchmark on agents: ``python -m benchmarks.agents``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from options import count, output

from benchmarks.agents.conditions import BY_NAME, CONDITIONS, FULL, QUICK

if TYPE_CHECKING:
    from benchmarks.agents.study import Job

NEEDED = ("trl", "datasets", "fusion_bench", "matplotlib")
RESULTS, TABLES, FIGURE = "results.json", "tables.md", "accuracy.svg"
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True)
HERE = Path(__file__).parent
DOCUMENTS = (HERE / "RESULTS.md", HERE.parents[1] / "docs" / "results.md")


@click.group()
def main() -> None:
    """Train agents by reinforcement learning, merge them in every way, and measure the merges.

    \b
    Answer the question on tiny models, on two CPU cores:
      python -m benchmarks.agents tiny
    See within a minute that it runs at all:
      python -m benchmarks.agents tiny --quick --output trial
    """


@main.command()
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
    used. An interrupted run resumes when it is started again. It needs

    \b
      pip install '.[agents]'

    \b
    Only what agents on random subnetworks and supervised ones give, on two bases:
      python -m benchmarks.agents tiny --seeds 2 --condition subnetworks --condition supervised
    """
    # Once imported, some packages say nothing more of where they came from.
    missing = [name for name in NEEDED if name not in sys.modules and find_spec(name) is None]
    if missing:
        need = "pip install '.[agents]'"
        raise click.ClickException(f"{', '.join(missing)} missing; this needs: {need}")
    from benchmarks.agents import document, figure, models, study
    from benchmarks.agents.jobs import Workers
    from benchmarks.agents.results import Results

    effort = QUICK if quick else FULL
    chosen = [condition for condition in CONDITIONS if not names or condition.name in names]
    studies = [
        study.study(models.BaseJob(output, effort, condition.architecture, seed), condition)
        for condition in chosen
        for seed in range(min(seeds, condition.seeds))
    ]
    mixtures = _mixtures(studies)
    bases = list(dict.fromkeys(job.base for job in studies))
    agents = [agent for job in studies for agent in job.agents.values()]
    with Workers(processes, output) as pool:
        pool.run(models.make, [job for job in bases if not models.is_made(job)], "bases")
        pool.run(models.make, [job for job in agents if not models.is_made(job)], "agents")
        for title, jobs in (("merges", studies), ("mixtures", mixtures)):
            pool.run(study.measure, [job for job in jobs if not study.is_measured(job)], title)
        collected = study.collect(studies, mixtures, pool.seconds, processes)

    (output / RESULTS).write_text(json.dumps(collected, ensure_ascii=False) + "\n")
    found = Results.read(output / RESULTS)
    (output / TABLES).write_text(document.standalone(found))
    figure.draw(found, output / FIGURE)
    click.echo(document.every_table(found)["accuracy"]())
    for name in (TABLES, RESULTS, FIGURE):
        click.echo(f"written: {output / name}")


def _mixtures(studies: Sequence[Job]) -> list[Job]:
    """The mixtures whose agents are all trained from a base."""
    from benchmarks.agents import study

    trained = {(job.name, job.base) for job in studies}
    return [
        study.Job(base, name, members)
        for name, members in study.MIXTURES.items()
        for base in dict.fromkeys(job.base for job in studies)
        if all((condition, base) in trained for condition, _ in members)
    ]


@main.command()
@click.argument("results", type=EXISTING, default=HERE / RESULTS)
@click.option(
    "--document",
    "documents",
    type=EXISTING,
    multiple=True,
    default=DOCUMENTS,
    help="Markdown whose tables, between <!-- table: NAME --> and <!-- end -->, are replaced. "
    "Default: the published ones.",
)
@click.option(
    "--figure",
    "drawing",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to draw the figure too, as .svg or .png.",
)
@click.option(
    "--small",
    type=EXISTING,
    multiple=True,
    default=sorted(HERE.glob("small-*.json")),
    help="Results of agents from SmolLM2-135M-Instruct. Default: the published ones.",
)
def report(
    results: Path, documents: tuple[Path, ...], drawing: Path | None, small: tuple[Path, ...]
) -> None:
    """Fill the tables of documents from RESULTS, the results.json of a run.

    \b
    The published documents and figure anew, from the published results:
      python -m benchmarks.agents report --figure docs/agents.svg
    """
    from benchmarks.agents import document, figure
    from benchmarks.agents.results import Results

    found = Results.read(results)
    named = document.every_table(found, [json.loads(file.read_text()) for file in small])
    for file in documents:
        document.fill(file, named)
        click.echo(f"written: {file}")
    if drawing is not None:
        figure.draw(found, drawing)
        click.echo(f"written: {drawing}")


if __name__ == "__main__":
    main()
