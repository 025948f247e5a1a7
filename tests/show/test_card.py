"""The section of a merge's model card."""

from __future__ import annotations

import re

from page_records import Finding
from pages import RECORDS

from mergekit_ram.methods import RamDirectionsMerge
from mergekit_ram.show import card
from mergekit_ram.show.card import HEAD, card_section, whole_card


def test_numbers_stand_to_the_right_of_their_columns():
    (rule,) = re.findall(r"^\|:?-.*$", card_section(RECORDS["merge"]), re.MULTILINE)
    first, *others = rule.strip("|").split("|")
    assert first.startswith(":-")
    assert all(cell.endswith("-:") for cell in others)


def test_the_card_has_our_tag_beside_mergekits():
    tags = whole_card(lambda: HEAD, RECORDS["merge"]).split("tags:\n")[1].split("---")[0]
    assert tags.split() == ["-", "mergekit", "-", "merge", "-", "ram"]
    assert whole_card(lambda: HEAD, None) == HEAD


def test_every_finding_is_a_line_of_a_list():
    findings = tuple(Finding(code=code, text=f"{code} is\nso.") for code in ("one", "two"))
    section = card_section(RECORDS["merge"].model_copy(update={"findings": findings}))
    assert section.endswith("Findings:\n\n* one is\\nso.\n* two is\\nso.\n".replace("\\", "&#92;"))


def test_the_card_names_no_file_that_a_hub_may_lack():
    section = card_section(RECORDS["merge"].model_copy(update={"counts_from": "/home/me/x.json"}))
    assert ".json" not in section
    assert "The counts were taken before this merge" in section


def test_the_package_is_a_link_where_it_has_an_address(monkeypatch):
    class Metadata:
        def get_all(self, name: str, missing: object) -> list[str]:
            return ["Repository, https://example.org/ram", "Paper, https://arxiv.org"]

    assert "of mergekit-ram 0.2.0" in card_section(RECORDS["merge"])
    monkeypatch.setattr(card, "metadata", lambda name: Metadata())
    assert "[mergekit-ram](https://example.org/ram)" in card_section(RECORDS["merge"])


def test_a_card_of_directions_cites_their_sources_and_has_no_factor():
    settings = RECORDS["merge"].settings.model_copy(update={"ridge": 0.3, "r": None, "alpha": None})
    record = RECORDS["merge"].model_copy(
        update={"merge_method": "ram_directions", "settings": settings}
    )
    section = card_section(record)
    for paper in ("2601.13572", "2503.08099"):
        assert f"https://arxiv.org/abs/{paper}" in section
    assert "λ" not in section
    assert "clipped" not in section
    assert "λ" in card_section(RECORDS["merge"])
    assert RamDirectionsMerge.spec.reference_url.endswith("2503.08099")
