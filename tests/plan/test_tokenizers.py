"""Vocabularies that are to be aligned, of models without a tokenizer."""

from __future__ import annotations

import pytest
from families import Family
from models import save_tokenizer

SOURCES = pytest.mark.parametrize("source", ["base", "union"])


@SOURCES
@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo"])
@pytest.mark.parametrize("without", ["base", "tool"])
def test_a_model_without_a_tokenizer_is_named(tmp_path, source, architecture, without):
    family = Family(tmp_path, architecture)
    for name in {"base", "coder", "tool"} - {without}:
        save_tokenizer(family.path(name))
    line = family.refusal(tokenizer={"source": source})
    assert line.startswith(f"Error: model {family.path(without)}: ")
    assert "tokenizer" in line
    assert line.endswith(
        "Copy the tokenizer that the model was trained with into its folder, or leave `tokenizer:` "
        "out where all vocabularies are the same."
    )


def test_the_old_key_is_looked_at_too(tmp_path):
    family = Family(tmp_path)
    save_tokenizer(family.path("base"))
    line = family.refusal(tokenizer_source="union")
    assert line.startswith(f"Error: model {family.path('coder')}: ")


def test_a_tokenizer_of_another_folder_is_looked_at_too(tmp_path):
    family = Family(tmp_path)
    for name in ("base", "coder", "tool"):
        save_tokenizer(family.path(name))
    (tmp_path / "elsewhere").mkdir()
    line = family.refusal(tokenizer={"source": str(tmp_path / "elsewhere")})
    assert line.startswith(f"Error: model {tmp_path / 'elsewhere'}: ")


def test_a_broken_tokenizer_is_named(tmp_path):
    family = Family(tmp_path)
    for name in ("base", "coder", "tool"):
        save_tokenizer(family.path(name))
    (family.path("tool") / "tokenizer.json").write_text("no json")
    line = family.refusal(tokenizer={"source": "union"})
    assert line.startswith(
        f"Error: model {family.path('tool')}: the tokenizer of {family.path('tool')} cannot be read"
    )


@SOURCES
@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo"])
def test_with_tokenizers_everywhere_the_updates_of_embeddings_are_kept(
    tmp_path, source, architecture
):
    family = Family(tmp_path, architecture)
    for name in ("base", "coder", "tool"):
        save_tokenizer(family.path(name))
    written = family.merge(tokenizer={"source": source})
    expected = family.expected()
    embedding = "model.embed_tokens.weight"
    assert written[embedding].shape == expected[embedding].shape
    rows = sorted(map(tuple, written[embedding].float().tolist()))
    assert rows == sorted(map(tuple, expected[embedding].float().tolist()))
