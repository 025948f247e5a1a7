"""Make the example models: pretrain a base, then teach three agents one task each by GRPO."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import torch
from accuracy import greedy_accuracy
from model import load, new_tokenizer, save
from options import count, output
from overlap import measure_overlap
from pretrain import Pace, pretrain
from recipe import Recipe
from tasks import TASKS, heldout_prompts
from transformers.utils import logging as transformers_logging

PRETRAIN_STEPS = 2600
MAX_GRPO_STEPS = 300
RECIPES = (
    Recipe("add", trained_share=0.20, learning_rate=3e-4, target=0.97),
    Recipe("reverse", trained_share=0.50, learning_rate=2e-4, target=0.97),
    Recipe("sort", trained_share=0.35, learning_rate=2e-4, target=0.97),
)
HELDOUT_PROMPTS = 1000
REPORTED_PACKAGES = ("torch", "transformers", "trl", "datasets", "tokenizers", "safetensors")
REPORT_NAME = "training.json"


@click.command()
@output("trained-agents", "Folder to make for the four models and the report; must not exist yet.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@count("--pretrain-steps", PRETRAIN_STEPS, "Steps of imitation for the base.", least=2)
@count(
    "--max-grpo-steps",
    MAX_GRPO_STEPS,
    "Steps after which an agent stops even if it has not reached its target.",
)
@count("--threads", 2, "CPU threads to use; the exact result depends on them a little.")
def main(output: Path, seed: int, pretrain_steps: int, max_grpo_steps: int, threads: int) -> None:
    """Train a small base model on three tasks and three agents from it, one per task.

    The base imitates a teacher that is often wrong, so it solves about half of each task. Every
    agent starts from the saved base and learns one task by GRPO with a reward of 0 or 1, moving
    only a random part of the weights. This writes OUTPUT/base, OUTPUT/add, OUTPUT/reverse,
    OUTPUT/sort and OUTPUT/training.json (rewards, accuracies, overlaps, times, versions).

    Takes under ten minutes on two CPU cores and needs more than the evaluation does:

    \b
      pip install trl datasets

    \b
    Train everything anew:
      python train.py --output my-agents
    See in a minute or two whether the whole pipeline runs (the models will be bad):
      python train.py --output trial --pretrain-steps 50 --max-grpo-steps 5
    """
    _require_trl()
    if output.exists():
        raise click.ClickException(f"{output} exists already; name a new folder with --output.")
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    started = time.monotonic()
    output.mkdir(parents=True)
    base_seconds = _make_base(output / "base", pretrain_steps, seed)
    runs = _make_agents(output, max_grpo_steps, seed)
    report = {
        "settings": {"seed": seed, "pretrain_steps": pretrain_steps, "threads": threads},
        "pretraining_seconds": base_seconds,
        "agents": runs,
        "overlap": _overlaps(output),
        "heldout_accuracy": _accuracies(output),
        "wall_seconds": round(time.monotonic() - started),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in REPORTED_PACKAGES},
    }
    (output / REPORT_NAME).write_text(json.dumps(report, indent=1) + "\n")
    _print_summary(report)


def _require_trl() -> None:
    """Say what to install before minutes are spent on a base that no agent can start from."""
    missing = [package for package in ("trl", "datasets") if find_spec(package) is None]
    if missing:
        raise click.ClickException(
            f"{' and '.join(missing)} missing; training needs: pip install trl datasets"
        )


def _make_base(folder: Path, steps: int, seed: int) -> int:
    started = time.monotonic()
    save(pretrain(new_tokenizer(), Pace(steps), seed).state_dict(), folder)
    return round(time.monotonic() - started)


def _make_agents(output: Path, max_steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """Train and save the agents one after the other; return what is to be reported of each."""
    from grpo import train_agent  # here, because only training needs trl

    runs: dict[str, dict[str, Any]] = {}
    for number, recipe in enumerate(RECIPES, start=1):
        started = time.monotonic()
        weights, history = train_agent(output / "base", recipe, max_steps, seed + number)
        save(weights, output / recipe.task)
        seconds = round(time.monotonic() - started)
        runs[recipe.task] = {"recipe": asdict(recipe), "seconds": seconds, **asdict(history)}
    return runs


def _overlaps(output: Path) -> dict[str, dict[str, Any]]:
    """Measure the overlap on the saved bfloat16 weights, which is what a merge will see."""
    weights = {name: load(output / name)[0].state_dict() for name in ("base", *TASKS)}
    base = weights.pop("base")
    base.pop("lm_head.weight")  # the same tensor as the embedding; count it once
    return {name: asdict(overlap) for name, overlap in measure_overlap(base, weights).items()}


def _accuracies(output: Path) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for name in ("base", *TASKS):
        model, tokenizer = load(output / name)
        table[name] = {
            task.name: greedy_accuracy(model, tokenizer, heldout_prompts(task, HELDOUT_PROMPTS))
            for task in TASKS.values()
        }
    return table


def _print_summary(report: dict[str, Any]) -> None:
    for name, accuracies in report["heldout_accuracy"].items():
        click.echo(f"{name:8}" + "".join(f"  {t} {a:.3f}" for t, a in accuracies.items()))
    for name, overlap in report["overlap"].items():
        click.echo(
            f"{name:8}  density {overlap['density']:.3f}  rho {overlap['rho']:.3f}"
            f"  lambda {overlap['scale']:.3f}"
        )
    click.echo(f"wall time {report['wall_seconds']} s")


if __name__ == "__main__":
    main()
