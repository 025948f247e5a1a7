"""The command ``mergekit-ram merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mergekit_ram.cli.options import SETTINGS, parse, words

ENGINES = ("local", "ray")
"""Where workers run: on this machine, or on a Ray cluster."""

CONFIG = click.Argument(
    ["config_file"],
    metavar="CONFIG.yml",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
FOLDER = click.Argument(
    ["out_path"], metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False)
)
MORE_OPTIONS = """\
All options of mergekit-yaml are accepted too: --out-shard-size, --lora-merge-cache, --device,
--cuda, --no-copy-tokenizer, --trust-remote-code, -j (threads), -v, --quiet and more."""


class UnitRange(click.ParamType):  # type: ignore[type-arg]  # generic in some versions alone
    """``FIRST:END``, the end left out, as Python writes a slice."""

    name = "FIRST:END"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, range):
            return value
        first, _, end = str(value).partition(":")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            self.fail(f"{value!r} is no range of units; write 0:16 for the units 0 to 15")
        return range(int(first), int(end))


@click.command(
    "merge",
    context_settings=SETTINGS,
    short_help="Merge by units of work, resuming after a crash.",
    epilog=MORE_OPTIONS,
)
@words("CONFIG.yml FOLDER")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that work on units beside each other.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    show_default=True,
    help="Where workers run: on this machine, or on a Ray cluster that shares the folders.",
)
@click.option(
    "--estimate",
    "only_estimate",
    is_flag=True,
    help="Say what will be read, written, held and how long it takes; merge nothing.",
)
@click.option(
    "--units",
    "only",
    type=UnitRange(),
    help="Do these units and nothing else; --finalise, in one process, makes the model.",
)
@click.option(
    "--finalise", is_flag=True, help="Do no unit: make the model of units that are all done."
)
@click.option(
    "--restart", is_flag=True, help="Throw away what an earlier try has finished, and begin anew."
)
@click.pass_context
def command(
    context: click.Context,
    words: tuple[str, ...],
    workers: int,
    engine: str,
    only_estimate: bool,
    only: range | None,
    finalise: bool,
    restart: bool,
) -> None:
    """Merge by units of work: a merge that resumes after a crash.

    CONFIG.yml and FOLDER are those of mergekit-yaml, and so are the weights, the configuration,
    the tokenizer and the model card that are written. A unit is one shard of the output, or a
    group of tensors to count. The same command again resumes an earlier try that stopped.

    \b
    On this machine:
      mergekit-ram merge merge.yml ./merged
    In eight processes of it:
      mergekit-ram merge merge.yml ./merged --workers 8
    On a Ray cluster with a shared folder:
      mergekit-ram merge merge.yml ./merged --engine ray --workers 32
    What will it take?
      mergekit-ram merge merge.yml ./merged --estimate
    How far is it?
      mergekit-ram status ./merged
    """
    options, given = parse(context, words, CONFIG, FOLDER)
    from mergekit_ram.units.driver import merge, progress_text
    from mergekit_ram.units.estimate import estimate
    from mergekit_ram.units.job import read_job

    job = read_job(
        given["config_file"],
        given["out_path"],
        options,
        workers=workers,
        engine=engine,
        units=only,
        finalise=finalise,
        restart=restart,
    )
    if only_estimate:
        click.echo(estimate(job), nl=False)
    elif not merge(job):
        click.echo(progress_text(given["out_path"]), nl=False, err=True)
