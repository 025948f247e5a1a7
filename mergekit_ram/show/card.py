"""Adds the overlap of the agents to a merge's model card."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from mergekit_ram.errors import one_line
from mergekit_ram.patches import wrap
from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord
from mergekit_ram.show.columns import spanned
from mergekit_ram.show.tables import agent_table
from mergekit_ram.show.terminal import as_markdown
from mergekit_ram.visible import as_code, in_markdown, visible

LOG = logging.getLogger("mergekit_ram")

_is_written: ContextVar[bool] = ContextVar("card", default=False)
"""Whether this thread makes the card of a merge of ours."""

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

Merged by `{method}` of mergekit-ram {version} with {settings}. A parameter is active in an agent
that changed it by more than ε, and unique where no other agent did. All counts are in
`{record}`; `mergekit-ram inspect FOLDER` shows them.{origin}

{table}
{findings}"""
ORIGIN = "\nThe counts were not taken in this merge: they are those of {path}."
CODE = "`"
"""Findings have words of a recipe in these; in a name they do no harm."""


def whole_card(write: Callable[[], str], record: OverlapRecord | None) -> str:
    """mergekit's model card with our section, where there is a record.

    mergekit writes the card after everything else, so a failure in it is only a warning.

    Args:
        write: makes mergekit's card.
        record: of the merge.
    """
    token = _is_written.set(True)
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
    finally:
        _is_written.reset(token)
    return card if record is None else card.rstrip("\n") + "\n" + card_section(record)


def stay_here(cards: ModuleType | None) -> None:
    """Keep mergekit's cards of our merges from asking the hub for models on this machine."""
    if callable(getattr(cards, "is_hf", None)):
        wrap(cards, "is_hf", _is_of_hub)


def _is_of_hub(wrapped: Callable[[str], bool], instance: Any, args: Any, kwargs: Any) -> bool:
    """mergekit asks for folders whose names could be of the hub too, and fails offline."""
    path = kwargs.get("path", args[0] if args else "")
    return False if _is_written.get() and os.path.exists(path) else wrapped(*args, **kwargs)


def card_section(record: OverlapRecord) -> str:
    """What the model card says of the merge."""
    settings = record.settings
    named = {"ε": settings.epsilon, "r": settings.r, "α": settings.alpha, "ridge": settings.ridge}
    given = [f"{name} = {spanned(value)}" for name, value in named.items() if value is not None]
    whole_names = {agent.model: agent.model for agent in record.agents}
    findings = "".join(f"* {in_markdown(found.text, kept=CODE)}\n" for found in record.findings)
    return SECTION.format(
        method=record.merge_method,
        version=record.versions.mergekit_ram,
        settings=", ".join(given),
        record=RECORD_NAME,
        origin=ORIGIN.format(path=as_code(record.counts_from)) if record.counts_from else "",
        table=as_markdown(agent_table(record, whole_names)),
        findings=f"\nFindings:\n\n{findings}" if findings else "",
    )
