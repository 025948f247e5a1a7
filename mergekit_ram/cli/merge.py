"""The command ``mergekit-ram merge``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from mergekit_ram.cli.options import SETTINGS, parse, words

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


def _unit_range(context: click.Context, option: click.Parameter, text: str | None) -> range | None:
    """``FIRST:END``, the end left out, as Python writes a slice."""
    found = re.fullmatch(r"(\d+):(\d+)", text or "")
    if text is None or (found and int(found[1]) < int(found[2])):
        return found and range(int(found[1]), int(found[2]))
    raise click.BadParameter(f"{text!r} is no range of units; write 0:16 for the units 0 to 15")


@click.command(
    "merge",
    context_settings=SETTINGS,
    short_help="Merge by units of work, resuming after a crash.",
    epilog=MORE_OPTIONS,
)
@words("CONFIG.yml FOLDER")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, help="Processes that share the units."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where workers run: on this machine, or on a Ray cluster that shares the folders.",
)
@click.option(
    "--estimate",
    "only_estimate",
    is_flag=True,
    help="Print the bytes to read and to write, memory and time; merge nothing.",
)
@click.option(
    "--units",
    "only",
    metavar="FIRST:END",
    callback=_unit_range,
    help="Do only these units; --finalise, run once at the end, writes the model.",
)
@click.option(
    "--finalise", is_flag=True, help="Do no unit; write the model when all units are done."
)
@click.option("--restart", is_flag=True, help="Delete the units of an earlier try; begin again.")
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

    CONFIG.yml and FOLDER are those of mergekit-yaml, and the output is the same. A unit is one
    shard of the output, or a group of tensors to count. If a merge stopped early, run the same
    command again to resume it.

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
