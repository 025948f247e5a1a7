"""Compares the models' vocabularies, by whose numbers the rows of embeddings are merged."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from mergekit.architecture import WeightInfo
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration

from mergekit_ram.errors import InputError, reading
from mergekit_ram.models.loader import NamedLoader

FILES = ("tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json")
"""That number tokens; an added token goes before one of a vocabulary."""

LISTED = 5
"""Numbers that a message lists."""

TOKENIZER_REMEDY = (
    "Copy the tokenizer that the model was trained with into its folder, or leave `tokenizer:` "
    "out where all vocabularies are the same."
)

Users = Mapping[str, Sequence[ModelReference]]
"""The models that give a number to a token, by the token."""


def check_vocabularies(
    config: MergeConfiguration,
    weights: Iterable[WeightInfo],
    loaders: Mapping[ModelReference, NamedLoader],
    *,
    trust_remote_code: bool,
) -> None:
    """Check that a number means the same token in all models, or that the recipe aligns them.

    Args:
        config: of a merge.
        weights: of the whole model.
        loaders: of all models.
        trust_remote_code: for tokenizers, where the recipe aligns vocabularies by them.

    Raises:
        InputError: rows of different tokens would be merged, or a tokenizer is missing.
    """
    source = config.tokenizer.source if config.tokenizer else config.tokenizer_source
    if source is not None:
        named = [source] if isinstance(source, ModelReference) else []
        for model in dict.fromkeys([*loaders, *named]):
            _check_tokenizer(model, trust_remote_code)
        return
    shared = _shared_numbers(loaders)
    numbered = [weight for weight in weights if shared and weight.vocabulary_axis is not None]
    apart = set().union(*(_rows_apart(weight, [*shared], loaders) for weight in numbered))
    clashes = [
        f"{number} is " + ", ".join(f"{token!r} in {users[0]}" for token, users in tokens.items())
        for number, tokens in sorted(shared.items())
        if number in apart
    ]
    if clashes:
        more = f" and {len(clashes) - LISTED} more" if len(clashes) > LISTED else ""
        raise InputError(
            "the models give the same numbers to different tokens, and a merge would mix the rows "
            f"of their embeddings: {'; '.join(clashes[:LISTED])}{more}. Align the vocabularies by "
            "their tokens: `tokenizer: {source: union}` (or `base`) in the YAML."
        )


def _shared_numbers(loaders: Mapping[ModelReference, NamedLoader]) -> dict[int, Users]:
    """Numbers of several tokens, as the models' files say; a model without files says nothing.

    A file that is the same in all models is not looked into.
    """
    folders = {
        model: Path(model.lora.path if model.lora else loader.index.base_path)
        for model, loader in loaders.items()
    }
    contents = {
        name: {
            m: (folder / name).read_bytes()
            for m, folder in folders.items()
            if (folder / name).is_file()
        }
        for name in FILES
    }
    known = {model for own in contents.values() for model in own}
    tokens: dict[ModelReference, dict[int, str]] = defaultdict(dict)
    for name, own in contents.items():
        if len({*own.values()}) == 1 and len(own) == len(known):
            continue
        for model, content in own.items():
            file = folders[model] / name
            with reading(model, f"the vocabulary {file}", "Repair or re-download it."):
                tokens[model] |= _tokens(name, json.loads(content))
    users: dict[int, dict[str, list[ModelReference]]] = defaultdict(lambda: defaultdict(list))
    for model in loaders:
        for number, token in tokens[model].items():
            users[number][token].append(model)
    return {number: by_token for number, by_token in users.items() if len(by_token) > 1}


def _tokens(name: str, found: dict[str, Any]) -> dict[int, str]:
    """The tokens in a file of a tokenizer, by their numbers."""
    if name == "tokenizer_config.json":
        added = found.get("added_tokens_decoder") or {}
        return {int(number): token["content"] for number, token in added.items()}
    numbers = found.get("model", {}).get("vocab", {}) if name == "tokenizer.json" else found
    if isinstance(numbers, list):  # of pieces with their scores
        numbers = {piece[0]: number for number, piece in enumerate(numbers)}
    added = found.get("added_tokens") if name == "tokenizer.json" else None
    tokens = {number: token for token, number in numbers.items()}
    return tokens | {token["id"]: token["content"] for token in added or ()}


def _rows_apart(
    weight: WeightInfo, numbers: list[int], loaders: Mapping[ModelReference, NamedLoader]
) -> set[int]:
    """The numbers of rows that are not the same in all models that hold them."""
    found = [loader.peek(weight.name) for loader in loaders.values()]
    tensors = [t.movedim(weight.vocabulary_axis or 0, 0) for t in found if t is not None]
    size = min(map(len, tensors), default=0)
    held = torch.tensor([number for number in numbers if 0 <= number < size], dtype=torch.long)
    apart = torch.zeros(len(held), dtype=torch.bool)
    for tensor in tensors[1:]:
        differs = tensors[0][held] != tensor[held]
        apart |= differs.any(dim=1) if differs.ndim > 1 else differs
    return {int(number) for number in held[apart]}


def _check_tokenizer(model: ModelReference, trust_remote_code: bool) -> None:
    """mergekit takes the base's tokenizer in place of one that it cannot load, and transformers
    makes up an empty one for a folder without."""
    with reading(model, f"the tokenizer of {model.model}", TOKENIZER_REMEDY):
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            model.model.path, revision=model.model.revision, trust_remote_code=trust_remote_code
        )
        added = {token.content for token in tokenizer.added_tokens_decoder.values()}
        vocabulary = tokenizer.get_vocab().keys()
    if not vocabulary - added:
        raise InputError(
            f"model {model}: {model.model} holds no tokenizer, and `tokenizer:` aligns "
            f"vocabularies by the tokens of every model. {TOKENIZER_REMEDY}"
        )
