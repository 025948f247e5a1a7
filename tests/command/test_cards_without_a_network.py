"""The model card where no hub can be asked."""

from __future__ import annotations

import logging

import huggingface_hub
import pytest
from models import Trio, forget_loaded_models, read_weights, run_yaml, succeed

SECTION = "\n## Overlap of the agents\n"


def relative(trio: Trio, method: str = "ram_plus") -> dict[str, object]:
    models = [{"model": name} for name in ("coder", "tool")]
    return trio.config(method, base_model="base", models=models)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Models that the hub is asked for, in vain."""
    found: list[str] = []

    def fail(path: str, **settings: object) -> bool:
        found.append(path)
        raise ConnectionError("no network:\nnothing answers")

    monkeypatch.setattr(huggingface_hub, "repo_exists", fail)
    return found


@pytest.mark.parametrize("method", ["ram", "ram_plus", "ram_directions"])
def test_folders_named_without_a_dot_get_their_card_without_a_network(
    trio: Trio, monkeypatch, asked, method
):
    monkeypatch.chdir(trio.folder)
    succeed(run_yaml(relative(trio, method), trio.folder / "merged", "--no-copy-tokenizer"))
    card = (trio.folder / "merged" / "README.md").read_text()
    assert "using base as a base" in card
    assert "* coder\n* tool\n" in card or "* tool\n* coder\n" in card
    assert SECTION in card
    assert (trio.folder / "merged" / "mergekit_config.yml").exists()
    assert asked == []


def test_a_card_that_fails_is_a_warning_and_the_merge_is_whole(trio: Trio, monkeypatch, caplog):
    def fail(method: str) -> str:
        raise ConnectionError("no network:\nnothing answers")

    monkeypatch.setattr("mergekit.card.method_md", fail)
    monkeypatch.chdir(trio.folder)
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        result = run_yaml(relative(trio), trio.folder / "merged", "--no-copy-tokenizer")
    succeed(result)
    assert (
        "the model card README.md lacks mergekit's part, which cannot be made: no network: nothing "
        "answers; the merge itself is whole"
    ) in [record.getMessage() for record in caplog.records]
    card = (trio.folder / "merged" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert SECTION in card
    assert read_weights(trio.folder / "merged").keys() == trio.base.keys()


def test_cards_of_other_methods_ask_as_before(trio: Trio, monkeypatch, asked):
    monkeypatch.chdir(trio.folder)
    succeed(run_yaml(relative(trio), trio.folder / "merged", "--no-copy-tokenizer"))
    forget_loaded_models()
    linear = relative(trio, "linear") | {"parameters": {"weight": 1.0}}
    result = run_yaml(linear, trio.folder / "linear", "--no-copy-tokenizer")
    assert isinstance(result.exception, ConnectionError)
    assert asked
