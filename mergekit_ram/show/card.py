"""Adds the overlap of the agents to a merge's model card."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata

from mergekit_ram.errors import one_line
from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.columns import settings_of
from mergekit_ram.show.tables import agent_table
from mergekit_ram.show.terminal import as_markdown
from mergekit_ram.text import in_markdown, visible

PACKAGE = "mergekit-ram"
LOG = logging.getLogger("mergekit_ram")

HEAD = """---
library_name: transformers
tags:
- mergekit
- merge
---
# A merge by mergekit
"""
"""In place of mergekit's card where that cannot be made; the recipe is beside it."""

SECTION = """
## Overlap of the agents

Merged by `{method}` of {package} {version} with {settings}.{source} A parameter is active in an
agent that changed it by more than ε, and unique where no other agent did.{origin}
{verdict}
{table}
{findings}"""
SOURCES = {
    "ram_directions": " It applies the table of [RAM](https://arxiv.org/abs/2601.13572) to "
    "directions, by the criterion of [WUDI-Merging](https://arxiv.org/abs/2503.08099) in closed "
    "form."
}
"""Of methods with more sources than mergekit's part of the card cites."""

ORIGIN = "\nThe counts were taken before this merge, of the same models."
CODE = "`"
"""Findings have words of a recipe in these; in a name they do no harm."""


def whole_card(write: Callable[[], str], record: OverlapRecord | None) -> str:
    """mergekit's model card with our section, where there is a record.

    mergekit writes the card after everything else, so a failure in it is only a warning.

    Args:
        write: makes mergekit's card.
        record: of the merge.
    """
    try:
        card = write()
    except Exception as error:  # it may ask the hub, which fails in many ways
        LOG.info("mergekit's model card failed", exc_info=True)
        LOG.warning(
            "the model card README.md lacks mergekit's part, which cannot be made: %s; the merge "
            "itself is whole",
            visible(one_line(error)),
        )
        card = HEAD
    if record is None:
        return card
    tagged = card.replace("\n- merge\n", "\n- merge\n- ram\n", 1)
    return tagged.rstrip("\n") + "\n" + card_section(record)


def card_section(record: OverlapRecord) -> str:
    """What the model card says of the merge."""
    settings = [f"{name} = {value}" for name, value in settings_of(record).items()]
    whole_names = {agent.model: agent.model for agent in record.agents}
    lines = record.verdict.lines if record.verdict else ()
    findings = "".join(f"* {in_markdown(found.text, kept=CODE)}\n" for found in record.findings)
    return SECTION.format(
        method=record.merge_method,
        package=_package(),
        version=record.versions.mergekit_ram,
        settings=", ".join(settings),
        source=SOURCES.get(record.merge_method, ""),
        origin=ORIGIN if record.counts_from else "",
        verdict="".join(f"\n{in_markdown(line, kept=CODE)}" for line in lines) + "\n",
        table=as_markdown(agent_table(record, whole_names)),
        findings=f"\nFindings:\n\n{findings}" if findings else "",
    )


def _package() -> str:
    """The package's name, with a link where its metadata have an address."""
    with suppress(PackageNotFoundError, KeyError):
        found = metadata(PACKAGE).get_all("Project-URL", [])
        return f"[{PACKAGE}]({dict(line.split(', ', 1) for line in found)['Repository']})"
    return PACKAGE
