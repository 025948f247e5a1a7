"""Tokenizers that a plan needs, looked at before the long passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import transformers
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration

from mergekit_ram.errors import InputError, reading

REMEDY = (
    "Copy the tokenizer that the model was trained with into its folder, or leave `tokenizer:` "
    "out where all vocabularies are the same."
)


def check_tokenizers(
    config: MergeConfiguration, models: Iterable[ModelReference], *, trust_remote_code: bool
) -> None:
    """Check that every model has a tokenizer, where the configuration wants them aligned.

    mergekit takes the base's in place of one that it cannot load, and transformers makes up an
    empty one for a folder without.

    Raises:
        InputError: naming the model.
    """
    source = config.tokenizer.source if config.tokenizer else config.tokenizer_source
    if source is None:
        return
    named = [source] if isinstance(source, ModelReference) else []
    for model in dict.fromkeys([*models, *named]):
        with reading(model, f"the tokenizer of {model.model}", REMEDY):
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                model.model.path,
                revision=model.model.revision,
                trust_remote_code=trust_remote_code,
            )
            added = {token.content for token in tokenizer.added_tokens_decoder.values()}
            vocabulary = tokenizer.get_vocab().keys()
        if not vocabulary - added:
            raise InputError(
                f"model {model}: {model.model} holds no tokenizer, and `tokenizer:` aligns "
                f"vocabularies by the tokens of every model. {REMEDY}"
            )
