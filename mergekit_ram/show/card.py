"""The section of a merge's model card on the overlap of its agents."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mergekit_ram.errors import one_line
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord, Setting
from mergekit_ram.show import wording
from mergekit_ram.show.tables import agent_table
from mergekit_ram.show.terminal import as_markdown
from mergekit_ram.text import as_code, in_markdown, visible

LOG = logging.getLogger("mergekit_ram")

HEAD = """---
library_name: transformers
tags:
- mergekit
- merge
---
# A merge by mergekit
"""
"""In place of mergekit's card where that cannot be made; the recipe lies beside it."""

CARD_SECTION = """
## Overlap of the agents

Merged by `{method}` of mergekit-ram {version} with {settings}. A parameter is active in an agent
that changed it by more than ε, and unique where no other agent did. All counts are in
`{record}`; `mergekit-ram inspect FOLDER` shows them.{origin}

{table}
{findings}"""
CODE = "`"
"""Findings have words of a recipe in these; in a name they do no harm."""

FINDINGS_HEADING = "\nFindings:\n\n"

ORIGIN = "\nThe counts were not taken in this merge: they are those of {path}."


def whole_card(write: Callable[[], str], record: OverlapRecord | None) -> str:
    """mergekit's model card with our section, where there is a record to tell of.

    mergekit writes it when everything is merged: whatever goes wrong in it is a warning.

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
    return extended_card(card, record)


def extended_card(card: str, record: OverlapRecord | None) -> str:
    """A model card with our section, where there is a record to tell of."""
    return card if record is None else card.rstrip("\n") + "\n" + card_section(record)


def card_section(record: OverlapRecord) -> str:
    """What the model card says of the merge."""
    settings = record.settings
    named: dict[str, Setting | None] = {
        "ε": settings.epsilon,
        "r": settings.r,
        "α": settings.alpha,
        "ridge": settings.ridge,
    }
    given = [
        f"{name} = {wording.spanned(value)}" for name, value in named.items() if value is not None
    ]
    return CARD_SECTION.format(
        method=record.merge_method,
        version=record.versions.mergekit_ram,
        settings=", ".join(given),
        record=RECORD_NAME,
        origin=ORIGIN.format(path=as_code(record.counts_from)) if record.counts_from else "",
        table=as_markdown(agent_table(record, whole_names=True)),
        findings=_findings(record),
    )


def _findings(record: OverlapRecord) -> str:
    lines = "".join(f"* {in_markdown(finding.text, kept=CODE)}\n" for finding in record.findings)
    return FINDINGS_HEADING + lines if lines else ""
