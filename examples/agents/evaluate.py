"""Print how many held-out puzzles models solve: exact match, greedy, per task."""

from __future__ import annotations

from pathlib import Path

import click
import torch
from accuracy import greedy_accuracy
from model import load
from options import count
from tasks import TASKS, heldout_prompts
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

PROMPTS_PER_TASK = 1000
ACCURACY_WIDTH = 9


@click.command()
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@count(
    "--prompts",
    PROMPTS_PER_TASK,
    "Held-out prompts per task; fewer are quicker and less exact.",
    most=PROMPTS_PER_TASK,
)
@count(
    "--threads", 1, "CPU threads to use; more are slower where other programs use the cores too."
)
def main(models: tuple[Path, ...], prompts: int, threads: int) -> None:
    """Print the accuracy of each MODEL on the three tasks add, reverse and sort.

    A MODEL is a folder with weights, config and tokenizer: the base, one of the agents, or what
    mergekit wrote when it merged them. An answer counts when greedy decoding gives exactly the
    right one. The prompts are the same for every model and every run, and none of them was used
    in training: a checksum of the prompt decides which ones are held out (see tasks.py).

    \b
    Compare the base and the agents:
      python evaluate.py base add reverse sort
    Compare a merge with the agent that is best at adding:
      python evaluate.py ./merged add
    """
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    rows: list[tuple[str, list[float]]] = []
    for folder in models:
        _require_model(folder)
    with tqdm(total=len(models) * len(TASKS) * prompts, unit="prompt") as progress:
        for folder in models:
            progress.set_description(folder.name)
            rows.append((str(folder), _accuracies(folder, prompts, progress)))
    click.echo(_table(rows))


def _require_model(folder: Path) -> None:
    """Fail before any work is done when a path cannot be a model."""
    if not folder.is_dir():
        raise click.ClickException(f"{folder} is not a folder; give the path of a model's folder.")
    for needed in ("config.json", "tokenizer_config.json"):
        if not (folder / needed).is_file():
            raise click.ClickException(f"{folder} is not a model's folder: it has no {needed}.")


def _accuracies(folder: Path, count: int, progress: tqdm) -> list[float]:
    try:
        model, tokenizer = load(folder)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise click.ClickException(f"{folder} could not be loaded as a model: {error}") from error
    return [
        greedy_accuracy(model, tokenizer, heldout_prompts(task, count), progress.update)
        for task in TASKS.values()
    ]


def _table(rows: list[tuple[str, list[float]]]) -> str:
    """Align one line per model: its path, its accuracies and their mean."""
    width = max(len("model"), *(len(name) for name, _ in rows))
    titles = [*TASKS, "mean"]
    lines = ["model".ljust(width) + "".join(title.rjust(ACCURACY_WIDTH) for title in titles)]
    for name, accuracies in rows:
        values = [*accuracies, sum(accuracies) / len(accuracies)]
        cells = "".join(f"{value:.3f}".rjust(ACCURACY_WIDTH) for value in values)
        lines.append(name.ljust(width) + cells)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
