"""The command ``mergekit-ram``."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mergekit_ram import __version__
from mergekit_ram.errors import InputError
from mergekit_ram.merge_command import command as merge
from mergekit_ram.options import READING_OPTIONS, Chosen, with_options
from mergekit_ram.record.source import is_record

if TYPE_CHECKING:
    from mergekit_ram.record.schema import OverlapRecord

EXIT_FINDINGS = 3
STANDARD_OUTPUT = "-"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="mergekit-ram")
def main() -> None:
    """See what agents changed in their base, and what a merge by RAM or RAM+ keeps of it."""


class _ManyValues(click.Command):
    """A command whose ``--epsilon`` takes as many numbers as follow it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_repeated("--epsilon", args)))


def _repeated(option: str, arguments: Iterable[str]) -> Iterable[str]:
    """``--option 1 2`` as ``--option 1 --option 2``, which click understands."""
    is_taking = has_value = False
    for argument in arguments:
        if argument == option:
            is_taking, has_value = True, False
        elif is_taking and _is_number(argument):
            if has_value:
                yield option
            has_value = True
        else:
            is_taking = False
        yield argument


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@main.command(cls=_ManyValues, short_help="Show what agents changed, before or after a merge.")
@click.argument(
    "source", metavar="CONFIG.yml|FOLDER|RECORD.json", type=click.Path(path_type=Path, exists=True)
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write everything as JSON; - is the standard output, in place of the tables.",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one page with figures that can be read offline.",
)
@click.option(
    "--epsilon",
    "epsilons",
    type=click.FloatRange(min=0),
    multiple=True,
    metavar="E [E ...]",
    help="Count at these thresholds too, in the same pass, to see whether ε matters.",
)
@click.option(
    "--sample",
    "fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Look at this share of the rows of every tensor; figures are then estimates.",
)
@click.option("--seed", default=0, show_default=True, help="Of --sample.")
@click.option(
    "--realised/--no-realised",
    default=True,
    show_default=True,
    help="Read the models a second time, for what rounding leaves of λ.",
)
@click.option(
    "--directions/--no-directions",
    default=None,
    help="Reckon what ram_directions would keep, which takes as long as that merge. By default "
    "where that is the method, or takes little time.",
)
@click.option(
    "--strict", is_flag=True, help=f"End with exit code {EXIT_FINDINGS} if there are findings."
)
@with_options(READING_OPTIONS)
def inspect(
    source: Path,
    json_file: str | None,
    html_file: Path | None,
    epsilons: tuple[float, ...],
    fraction: float | None,
    seed: int,
    realised: bool,
    directions: bool | None,
    strict: bool,
    chosen: Chosen,
) -> None:
    """Show what agents changed, before a merge or after it; no weights are written.

    CONFIG.yml is what mergekit-yaml takes, of any merge method: the base and the models are
    read, and compared as ram_plus would. FOLDER is the output of a merge by ram or ram_plus,
    and RECORD.json what --json wrote: these are shown again without reading any model.

    \b
    Before a merge:
      mergekit-ram inspect merge.yml
    Does the threshold matter?
      mergekit-ram inspect merge.yml --epsilon 1e-6 1e-5 1e-4
    A look at large models in a minute, as a page:
      mergekit-ram inspect merge.yml --sample 0.01 --html overlap.html
    For another program:
      mergekit-ram inspect merge.yml --quiet --json - | jq '.agents[].density'
    After a merge:
      mergekit-ram inspect ./merged
    Measured on a cluster, read at home:
      mergekit-ram inspect overlap.json --html overlap.html

    Exit codes: 0 done, 1 an error in one line, 2 a wrong option, 3 findings with --strict.
    """
    _check_outputs(source, json_file, html_file)
    if is_record(source):
        record = _recorded(source, epsilons, fraction)
    else:
        record = _inspected(source, epsilons, fraction, seed, (realised, directions), chosen)
    _give_out(record, json_file, html_file)
    if strict and record.findings:
        sys.exit(EXIT_FINDINGS)


def _check_outputs(source: Path, json_file: str | None, html_file: Path | None) -> None:
    """Nobody wants to hear after an hour that the result has no place."""
    wanted = [Path(json_file)] if json_file and json_file != STANDARD_OUTPUT else []
    wanted += [html_file] if html_file else []
    taken = [source.resolve()]
    for path in wanted:
        if path.resolve() in taken:
            raise InputError(
                f"{path} is given twice, and would be overwritten. Choose another file."
            )
        taken.append(path.resolve())
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise InputError(
                f"{path} cannot be written: it is a folder, or in no folder that can be written "
                "to. Choose another file."
            )
    if html_file is not None:
        from mergekit_ram.show.page import check_available

        check_available()


def _recorded(source: Path, epsilons: tuple[float, ...], fraction: float | None) -> OverlapRecord:
    from mergekit_ram.record.beside import compared_with_weights
    from mergekit_ram.record.schema import RECORD_NAME, read_record

    if epsilons or fraction is not None:
        raise click.UsageError(
            "--epsilon and --sample read models, and a record has none: give the YAML file."
        )
    if source.is_dir():
        return compared_with_weights(read_record(source / RECORD_NAME), source)
    return read_record(source)


def _inspected(
    path: Path,
    epsilons: tuple[float, ...],
    fraction: float | None,
    seed: int,
    wanted: tuple[bool, bool | None],
    chosen: Chosen,
) -> OverlapRecord:
    from mergekit_ram.inspection.inspect import inspect as inspect_merge
    from mergekit_ram.inspection.sample import Sample

    realised, directions = wanted
    # First, since it sets up the log.
    options = chosen.applied()
    return inspect_merge(
        path,
        options,
        epsilons=tuple(sorted(set(epsilons))),
        sample=None if fraction is None else Sample(fraction, seed),
        realised=realised,
        directions=directions,
    )


def _give_out(record: OverlapRecord, json_file: str | None, html_file: Path | None) -> None:
    from mergekit_ram.show.terminal import as_text

    if json_file == STANDARD_OUTPUT:
        click.echo(record.to_json(), nl=False)
    else:
        click.echo(as_text(record), nl=False)
        if json_file is not None:
            _write(Path(json_file), record.to_json())
    if html_file is not None:
        from mergekit_ram.show.page import write_page

        write_page(record, html_file)
        click.echo(f"wrote {html_file}", err=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}. Choose another file.") from None
    click.echo(f"wrote {path}", err=True)


main.add_command(merge)


@main.command(short_help="Show versions, and whether the plugin is on.")
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
def status(folder: Path | None) -> None:
    """Show versions, whether the plugin is on, and who owns ram and ram_plus here.

    With the FOLDER of an unfinished `mergekit-ram merge`: how far it is.
    """
    if folder is not None:
        from mergekit_ram.units.progress import progress_text

        click.echo(progress_text(folder), nl=False)
        return
    from mergekit_ram.status import status_text

    logging.basicConfig(level=logging.WARNING)
    click.echo(status_text(), nl=False)


@main.command()
def schema() -> None:
    """Print the JSON schema of --json and of ram_overlap.json."""
    from mergekit_ram.record.schema import OverlapRecord

    click.echo(json.dumps(OverlapRecord.model_json_schema(mode="serialization"), indent=1))


if __name__ == "__main__":
    main()
