"""The command ``mergekit-ram inspect``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mergekit_ram.cli.options import SETTINGS, parse, words
from mergekit_ram.errors import InputError, working

if TYPE_CHECKING:
    from mergekit.options import MergeOptions

    from mergekit_ram.record.schema import OverlapRecord

EXIT_FINDINGS = 3
STANDARD_OUTPUT = Path("-")
FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
EPSILON = "--epsilon"
NUMBER = re.compile(r"[\d.]+(e[-+]?\d+)?", re.IGNORECASE)

SOURCE = click.Argument(
    ["source"],
    metavar="CONFIG.yml|FOLDER|RECORD.json",
    type=click.Path(path_type=Path, exists=True),
)
MORE_OPTIONS = """\
All options of mergekit-yaml are accepted too: --lora-merge-cache, --device, --cuda, -v, --quiet,
--transformers-cache, --trust-remote-code, -j (threads) and more."""


class _ManyValues(click.Command):
    """A command whose ``--epsilon`` takes as many numbers as follow it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_repeated(args)))


def _repeated(arguments: Sequence[str]) -> Iterator[str]:
    """``--epsilon 1 2`` as ``--epsilon 1 --epsilon 2``, which click understands."""
    is_value = False
    for before, argument in pairwise(["", *arguments]):
        is_value = before == EPSILON or (is_value and NUMBER.fullmatch(argument) is not None)
        if is_value and before != EPSILON:
            yield EPSILON
        yield argument


@click.command(
    "inspect",
    cls=_ManyValues,
    context_settings=SETTINGS,
    short_help="Show what agents changed, before or after a merge.",
    epilog=MORE_OPTIONS,
)
@words("CONFIG.yml|FOLDER|RECORD.json")
@click.option(
    "--json", "json_file", type=FILE, help="Write everything as JSON; - prints it, without tables."
)
@click.option(
    "--html", "html_file", type=FILE, help="Write a page with figures; it needs no network."
)
@click.option(
    EPSILON,
    "epsilons",
    type=click.FloatRange(min=0),
    multiple=True,
    metavar="E [E ...]",
    help="Count at these thresholds too, in the same pass: does ε matter?",
)
@click.option(
    "--sample",
    "fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Read this share of the rows of every tensor; figures are then estimates.",
)
@click.option("--seed", type=int, help="Of --sample; 0 by default.")
@click.option(
    "--realised/--no-realised",
    default=True,
    help="Read the models a second time, to show what the output's dtype stores of λ.",
)
@click.option(
    "--directions/--no-directions",
    default=None,
    help="Compute what ram_directions would keep, which takes as long as that merge. The default "
    "is to do so for that method, and for small models.",
)
@click.option(
    "--write-recipe",
    "recipe_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the YAML of the recommended merge, of the same models.",
)
@click.option(
    "--strict", is_flag=True, help=f"End with exit code {EXIT_FINDINGS} if there are findings."
)
@click.pass_context
def command(
    context: click.Context,
    words: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
    epsilons: tuple[float, ...],
    fraction: float | None,
    seed: int | None,
    realised: bool,
    directions: bool | None,
    recipe_file: Path | None,
    strict: bool,
) -> None:
    """Show what agents changed, before a merge or after it; no weights are written.

    CONFIG.yml is a configuration of mergekit-yaml with any merge method: its models are read
    and compared with the base. FOLDER is the output of a merge by ram, ram_plus or
    ram_directions, and RECORD.json a file of --json: these are shown without reading models.

    \b
    Before a merge:
      mergekit-ram inspect merge.yml
    Does the threshold matter?
      mergekit-ram inspect merge.yml --epsilon 1e-6 1e-5 1e-4
    A look at large models in a minute, as a page:
      mergekit-ram inspect merge.yml --sample 0.01 --html overlap.html
    The recommended merge:
      mergekit-ram inspect merge.yml --write-recipe recommended.yml
    For another program:
      mergekit-ram inspect merge.yml --quiet --json - | jq '.agents[].density'
    After a merge:
      mergekit-ram inspect ./merged
    Measured on a cluster, read at home:
      mergekit-ram inspect overlap.json --html overlap.html

    Exit codes: 0 done, 1 an error in one line, 2 a wrong option, 3 findings with --strict.
    """
    from mergekit_ram.record.check import is_record

    if seed is not None and fraction is None:
        click.echo("--seed has no effect without --sample", err=True)
    options = None
    source = Path(words[0] if len(words) == 1 else "")
    is_shown = len(words) == 1 and source.exists() and is_record(source)
    if not is_shown:
        options, given = parse(context, words, SOURCE)
        source = given["source"]
        is_shown = is_record(source)
    _check_outputs(source, [path for path in (json_file, html_file, recipe_file) if path])
    if recipe_file is not None and recipe_file.exists():
        raise InputError(f"{recipe_file} is there already. Choose another file.")
    if is_shown:
        if options is not None and not _is_default(options):
            click.echo("options of mergekit have no effect on a record", err=True)
        if epsilons or fraction is not None or recipe_file is not None:
            raise click.UsageError(
                "--epsilon, --sample and --write-recipe are of models, and a record has none: give "
                "the YAML file."
            )
        record = _recorded(source)
    else:
        from mergekit_ram.inspection.inspect import inspect
        from mergekit_ram.inspection.sample import Sample

        record = inspect(
            source,
            options,
            epsilons=tuple(sorted(set(epsilons))),
            sample=None if fraction is None else Sample(fraction, seed or 0),
            realised=realised,
            directions=directions,
        )
    _give_out(record, json_file, html_file)
    if recipe_file is not None:
        from mergekit_ram.inspection.inspect import recommended_recipe

        _write(recipe_file, recommended_recipe(source, record.verdict))
    if strict and record.findings:
        sys.exit(EXIT_FINDINGS)


def _check_outputs(source: Path, outputs: Sequence[Path]) -> None:
    """Fail before a long run if an output file cannot be written."""
    taken = {source.resolve()}
    for path in outputs:
        if path.resolve() in taken:
            raise InputError(
                f"{path} is given twice, and would be overwritten. Choose another file."
            )
        taken.add(path.resolve())
        if not os.access(path.parent, os.W_OK):
            raise InputError(
                f"{path} cannot be written: {path.parent} is no folder that can be written to. "
                "Choose another file."
            )


def _recorded(source: Path) -> OverlapRecord:
    from mergekit_ram.record.check import compared_with_weights, read_record

    record = read_record(source)
    return compared_with_weights(record, source) if source.is_dir() else record


def _give_out(record: OverlapRecord, json_file: Path | None, html_file: Path | None) -> None:
    if json_file == STANDARD_OUTPUT:
        click.echo(record.to_json(), nl=False)
    else:
        from mergekit_ram.show.terminal import as_text

        click.echo(as_text(record), nl=False)
        if json_file:
            _write(json_file, record.to_json())
    if html_file:
        from mergekit_ram.show.page import write_page

        write_page(record, html_file)
        click.echo(f"wrote {html_file}", err=True)


def _write(path: Path, text: str) -> None:
    with working(f"writing {path}"):
        path.write_text(text, encoding="utf-8")
    click.echo(f"wrote {path}", err=True)


def _is_default(options: MergeOptions) -> bool:
    """Whether these options ask for nothing but quiet."""
    return options == type(options)(quiet=options.quiet)
