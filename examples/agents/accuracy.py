"""Greedy exact-match accuracy: the one measure that training and evaluation share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tasks import MAX_ANSWER_LENGTH, is_right
from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE = 250


@torch.no_grad()
def complete(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]
) -> list[str]:
    """Let the model answer each prompt greedily, one token more than the longest right answer."""
    inputs = tokenizer(list(prompts), padding=True, padding_side="left", return_tensors="pt")
    output = model.generate(  # type: ignore[operator]  # mixed in by the concrete class
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        do_sample=False,
        max_new_tokens=MAX_ANSWER_LENGTH + 1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    answers = output[:, inputs["input_ids"].shape[1] :]
    return tokenizer.batch_decode(answers, skip_special_tokens=True)


def greedy_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    on_batch: Callable[[int], object] = lambda _: None,
) -> float:
    """Return the share of prompts answered exactly right; ``on_batch`` gets each batch's size."""
    right = 0
    for start in range(0, len(prompts), BATCH_SIZE):
        batch = prompts[start : start + BATCH_SIZE]
        right += sum(map(is_right, batch, complete(model, tokenizer, batch)))
        on_batch(len(batch))
    return right / len(prompts)
