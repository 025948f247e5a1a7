"""Every architecture is merged whole, and the document says so."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest
import torch
from architectures import ARCHITECTURES
from families import Family, assert_weights
from reference import same_bits

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
HEADING = "| architecture | class | parameters | tensors |"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_architecture_is_merged_whole_and_loads(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    expected = family.expected()
    assert_weights(family.merge(), expected)
    numel = sum(t.numel() for t in family.base.values() if t.is_floating_point())
    assert family.record()["parameters"] == numel
    model_class = type(family.model)
    loaded, info = model_class.from_pretrained(
        family.path("out"), dtype=torch.bfloat16, output_loading_info=True
    )
    assert not [kind for kind, found in info.items() if found]
    family.write("base", expected)
    right = model_class.from_pretrained(family.path("base"), dtype=torch.bfloat16).state_dict()
    for name, tensor in loaded.state_dict().items():
        assert same_bits(tensor, right[name]), name
    assert row(family, architecture) in table(), "docs/compatibility.md lacks this row"


def row(family: Family, architecture: str) -> str:
    numel = sum(t.numel() for t in family.base.values() if t.is_floating_point())
    return f"| {architecture} | `{type(family.model).__name__}` | {numel:,} | {len(family.base)} |"


def table() -> list[str]:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADING) + 2
    return list(takewhile(lambda line: line.startswith("|"), lines[start:]))


def test_the_document_lists_what_is_tested_and_nothing_else():
    assert [line.split("|")[1].strip() for line in table()] == list(ARCHITECTURES)
    assert len(ARCHITECTURES) >= 30
