"""The section of a merge's model card on the overlap of its agents."""

from __future__ import annotations

from mergekit_ram.record.schema import RECORD_NAME, OverlapRecord, Setting
from mergekit_ram.show import wording
from mergekit_ram.show.tables import agent_table
from mergekit_ram.show.terminal import as_markdown

CARD_SECTION = """
## Overlap of the agents

Merged by `{method}` of mergekit-ram {version} with {settings}. A parameter is active in an agent
that changed it by more than ε, and unique where no other agent did. All counts are in
`{record}`; `mergekit-ram inspect FOLDER` shows them.

{table}
{findings}"""
FINDINGS_HEADING = "\nFindings:\n\n"


def extended_card(card: str, record: OverlapRecord | None) -> str:
    """mergekit's model card with our section, where there is a record to tell of."""
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
        table=as_markdown(agent_table(record, whole_names=True)),
        findings=_findings(record),
    )


def _findings(record: OverlapRecord) -> str:
    lines = "".join(f"* {finding.text}\n" for finding in record.findings)
    return FINDINGS_HEADING + lines if lines else ""
