"""The command ``mergekit-ram``; help, ``status`` and records import nothing that takes seconds."""

from __future__ import annotations

import json

import click

from mergekit_ram import __version__
from mergekit_ram.cli.inspect import command as inspect
from mergekit_ram.cli.merge import command as merge
from mergekit_ram.cli.status import command as status


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="mergekit-ram")
def main() -> None:
    """See what agents changed in their base, and merge them by RAM, RAM+ or over directions."""


main.add_command(inspect)
main.add_command(merge)
main.add_command(status)


@main.command()
def schema() -> None:
    """Print the JSON schema of --json and of ram_overlap.json."""
    from mergekit_ram.record.schema import OverlapRecord

    click.echo(json.dumps(OverlapRecord.model_json_schema(mode="serialization"), indent=1))
