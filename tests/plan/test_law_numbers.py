"""Third law: the number of a row means one token in all models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest
import torch
from families import Family, assert_weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import TOKENS, save_tokenizer

KINDS = pytest.mark.parametrize("kind", ["Qwen2", "Qwen2, tied", "Olmo", "Qwen2.5-VL", "Qwen3-MoE"])
ENDING = (
    ". Align the vocabularies by their tokens: `tokenizer: {source: union}` (or `base`) in the "
    "YAML."
)


def named(number: int, token: str) -> list[str]:
    """The usual tokens with another one at a number."""
    return [*TOKENS[:number], token, *TOKENS[number + 1 :]]


def with_clash(family: Family) -> None:
    """Number 84 is another token in each of the agents."""
    save_tokenizer(family.path("base"))
    save_tokenizer(family.path("coder"), named(84, "<think>"))
    save_tokenizer(family.path("tool"), named(84, "<tool>"))


def change_row(family: Family, change: Callable[[str, torch.Tensor], None]) -> None:
    """Change what is stored of token 84 in all models, by the model's name and the row."""
    for name, own in {"base": family.base, **family.agents}.items():
        for key, tensor in own.items():
            if "embed_tokens" in key or "lm_head" in key:
                change(name, tensor[84])
        family.write(name, own)


@KINDS
def test_rows_of_different_tokens_are_not_mixed(tmp_path, kind):
    family = Family(tmp_path, kind)
    change_row(family, lambda name, row: row.fill_(len(name)))
    with_clash(family)
    base, coder, tool = (family.path(name) for name in ("base", "coder", "tool"))
    assert family.refusal() == (
        "Error: the models give the same numbers to different tokens, and a merge would mix the "
        f"rows of their embeddings: 84 is '<84>' in {base}, '<think>' in {coder}, '<tool>' in "
        f"{tool}{ENDING}"
    )
    change_row(family, lambda name, row: row.fill_(0.5))
    assert_weights(family.merge(), family.expected())


@KINDS
def test_a_model_without_a_tokenizer_is_not_guessed_about(tmp_path, kind):
    family = Family(tmp_path, kind)
    save_tokenizer(family.path("coder"), named(84, "<think>"))
    assert_weights(family.merge(), family.expected())


def test_the_recipe_may_align_the_tokens(tmp_path):
    family = Family(tmp_path)
    with_clash(family)
    written = family.merge(tokenizer={"source": "union"})
    assert written["model.embed_tokens.weight"].shape[0] == 98


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer_config.json", "vocab.json"])
def test_tokens_are_found_in_every_file_that_numbers_them(tmp_path, file):
    family = Family(tmp_path)
    for name in ("base", "tool"):
        token = {"base": "<a>", "tool": "<b>"}[name]
        content = {token: 84, "<other>": 3}
        if file == "tokenizer_config.json":
            content = {"added_tokens_decoder": {"84": {"content": token}}, "model_max_length": 3}
        (family.path(name) / file).write_text(json.dumps(content))
    line = family.refusal()
    assert f"84 is '<a>' in {family.path('base')}, '<b>' in {family.path('tool')}." in line


def test_no_more_than_five_numbers_are_named(tmp_path):
    family = Family(tmp_path)
    save_tokenizer(family.path("base"))
    save_tokenizer(family.path("tool"), [*TOKENS[:8], *reversed(TOKENS[8:])])
    line = family.refusal()
    assert line.count(" is '<") == 5
    assert line.endswith(f"and 83 more{ENDING}")


def test_a_vocabulary_that_cannot_be_read_is_named(tmp_path):
    family = Family(tmp_path)
    save_tokenizer(family.path("base"))
    file = family.path("tool") / "tokenizer.json"
    file.write_text("no json")
    assert family.refusal().startswith(
        f"Error: model {family.path('tool')}: the vocabulary {file} cannot be read: "
    )


@pytest.fixture(scope="module", params=["Qwen2", "Qwen2, tied"])
def family(request, tmp_path_factory) -> Family:
    return Family(tmp_path_factory.mktemp("random"), request.param)


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(
    renamed=st.sets(st.integers(3, 95), max_size=3),
    trained=st.sets(st.integers(3, 95), max_size=3),
    owner=st.sampled_from(["base", "coder", "tool"]),
)
def test_a_merge_is_refused_where_a_renamed_token_was_trained(family, renamed, trained, owner):
    models = {"base": dict(family.base), **{n: dict(w) for n, w in family.agents.items()}}
    for name, own in models.items():
        for key in own:
            if "embed_tokens" in key or "lm_head" in key:
                own[key] = family.base[key].clone()
                if name == "tool":
                    own[key][sorted(trained)] += 1
        family.write(name, own)
        tokens = [
            f"<new {i}>" if i in renamed and name == owner else t for i, t in enumerate(TOKENS)
        ]
        save_tokenizer(family.path(name), tokens)
    shutil.rmtree(family.path("out"), ignore_errors=True)
    result = family.run()
    line = result.output.splitlines()[-1] if result.output else ""
    assert (result.exit_code != 0) == bool(renamed & trained), result.output
    assert all(f"{number} is " in line for number in renamed & trained)
