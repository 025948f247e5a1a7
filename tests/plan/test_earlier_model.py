"""What an earlier model left in the output folder has no part in the next one."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from models import TOKENS, Trio, read_weights, run_yaml, save_tokenizer, succeed
from transformers import AutoModelForCausalLM, AutoTokenizer

LOADED = [
    "config.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model.fp16.safetensors",
    "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin",
    "consolidated.safetensors",
    "generation_config.json",
    "quantize_config.json",
    "tokenizer.json",
    "tokenizer.4.0.0.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tekken.json",
    "qwen.tiktoken",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tools.jinja",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "preprocessor_config.json",
    "processor_config.json",
    "ram_overlap.json",
]
"""What transformers, PEFT or an inference server take from a folder."""

KEPT = [
    "README.md",
    "merge.yml",
    "train.log",
    "training_args.bin",
    "notes/model.safetensors",
    "optimizer.pt",
    "dataset.safetensors",
    "model.py",
    "quantised.gguf",
]
"""The user's own."""


def fill(folder: Path, names: list[str], text: str = "{}") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_all_that_would_be_loaded_goes_and_all_else_stays(trio: Trio, caplog):
    out = trio.folder / "out"
    fill(out, LOADED, "old")
    fill(out, KEPT, "own")
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer", "--no-write-model-card"))
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    new = {"model.safetensors", "config.json", "generation_config.json", "ram_overlap.json"}
    assert files - new == set(KEPT)
    assert all((out / name).read_text() == "own" for name in KEPT)
    assert not any((out / name).read_text() == "old" for name in new & files if "safe" not in name)
    (warning,) = [r.message for r in caplog.records if "replacing" in r.message]
    assert all(name in warning for name in LOADED)
    assert not any(name in warning for name in KEPT if "model" not in name)


def test_shards_of_any_name_go_with_their_index_and_nothing_else_does(trio: Trio):
    out = trio.folder / "out"
    fill(out, ["part-a.safetensors", "README.md"], "old")
    fill(trio.folder, ["mine.safetensors"], "own")
    named = ["part-a.safetensors", "README.md", "../mine.safetensors", "gone.safetensors"]
    index = {"weight_map": {f"tensor{number}": name for number, name in enumerate(named)}}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer", "--no-write-model-card"))
    assert not (out / "part-a.safetensors").exists()
    assert (out / "README.md").read_text() == "old"
    assert (trio.folder / "mine.safetensors").read_text() == "own"


def test_an_index_that_cannot_be_read_is_removed_all_the_same(trio: Trio):
    out = trio.folder / "out"
    fill(out, ["model.safetensors.index.json"], '{"weight_map": [' + "[" * 100_000)
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer"))
    assert not (out / "model.safetensors.index.json").exists()


def test_the_adapter_of_an_earlier_run_is_not_applied_to_the_merge(trio: Trio):
    import peft

    out = trio.folder / "out"
    model = AutoModelForCausalLM.from_pretrained(trio.base_path, dtype=torch.bfloat16)
    lora = peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False)
    peft.get_peft_model(model, lora).save_pretrained(out)
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer"))
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16).state_dict()
    merged = read_weights(out)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in merged.items())
    assert not [name for name in loaded if "lora" in name]


def test_between_configuration_and_tokenizer_there_is_no_earlier_tokenizer(trio: Trio, monkeypatch):
    import mergekit.merge

    out = trio.folder / "out"
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer"))
    save_tokenizer(out, TOKENS[::-1])
    old = {file.name for file in out.iterdir() if "token" in file.name}
    assert "tokenizer.json" in old

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mergekit.merge, "_copy_tokenizer", interrupt)
    assert run_yaml(trio.config("ram"), out).exit_code == 1
    assert (out / "config.json").exists()
    assert not [name for name in old if (out / name).exists()]
    with pytest.raises((OSError, ValueError, AssertionError)):
        assert AutoTokenizer.from_pretrained(out).get_vocab().get("<95>") == 0


def test_the_folder_of_an_adapter_that_is_merged_is_not_written_to(trio: Trio):
    import peft

    model = AutoModelForCausalLM.from_pretrained(trio.base_path, dtype=torch.bfloat16)
    lora = peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False)
    adapter = trio.folder / "adapter"
    peft.get_peft_model(model, lora).save_pretrained(adapter)
    before = {file.name: file.read_bytes() for file in adapter.iterdir()}
    config = trio.config("ram", models=[{"model": f"{trio.base_path}+{adapter}"}])
    cache = str(trio.folder / "cache")
    result = run_yaml(config, adapter, "--no-copy-tokenizer", "--lora-merge-cache", cache)
    assert result.exit_code == 1
    assert "it is also the folder of a model that is merged" in result.output.splitlines()[-1]
    assert {file.name: file.read_bytes() for file in adapter.iterdir()} == before
