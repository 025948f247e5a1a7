"""Vocabularies, heads, adapters, dtypes and files: the naive reference, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import reference
import torch
from models import (
    TOKENS,
    Trio,
    merge_yaml,
    read_weights,
    run_yaml,
    save_tokenizer,
    succeed,
    write_weights,
)
from roads import BOTH, DTYPES, assert_same
from transformers import AutoModelForCausalLM, AutoTokenizer

from mergekit_ram.kernels import blocks

# Vocabularies


@BOTH
def test_a_union_of_vocabularies_is_counted_after_permutation(trio: Trio, method, r):
    coder, tool, memory = trio.agents
    for path in (trio.base_path, coder):
        save_tokenizer(Path(path))
    # One agent has another order of tokens, another one a token of its own.
    key = "model.embed_tokens.weight"
    original = {model: dict(weights) for model, weights in trio.agents.items()}
    write_weights(
        Path(memory), original[memory] | {key: original[memory][key].flip(0)}, trio.folder / "base"
    )
    save_tokenizer(Path(memory), TOKENS[::-1])
    grown = torch.cat([original[tool][key], torch.full((1, 32), 0.5, dtype=torch.bfloat16)])
    write_weights(Path(tool), original[tool] | {key: grown}, trio.folder / "base")
    save_tokenizer(Path(tool), [*TOKENS, "<new>"])
    settings = json.loads((Path(tool) / "config.json").read_text())
    (Path(tool) / "config.json").write_text(json.dumps(settings | {"vocab_size": 97}))
    config = trio.config(method, tokenizer={"source": "union", "pad_to_multiple_of": 8})
    succeed(run_yaml(config, trio.folder / "merged"))
    written = read_weights(trio.folder / "merged")

    # The rows follow the order of the tokenizer that mergekit built.
    vocabulary = AutoTokenizer.from_pretrained(trio.folder / "merged").get_vocab()
    order = sorted(vocabulary, key=vocabulary.__getitem__)
    assert set(order) == {*TOKENS, "<new>"}
    rows = [[*TOKENS, "<new>"].index(token) for token in order]

    def extended(embedding: torch.Tensor) -> torch.Tensor:
        # A token of one model alone is that model's in all of them; padding is the mean row.
        known = torch.cat([embedding[:96], grown[96:]])[rows]
        return torch.cat([known, known.mean(dim=0).expand(7, -1)])

    base = trio.base | {key: extended(trio.base[key])}
    agents = {m: w | {key: extended(w[key])} for m, w in original.items()}
    assert_same(written, reference.merge(base, agents, r=r))
    assert written[key].shape == (104, 32)


# Tied and untied output embeddings


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@BOTH
def test_a_stored_copy_of_a_tied_head_is_counted_once(trio: Trio, method, r):
    for path, weights in {trio.base_path: trio.base, **trio.agents}.items():
        write_weights(Path(path), weights | {HEAD: weights[EMBEDDING].clone()}, Path(path))
    written = trio.merge(method)
    expected = reference.merge(trio.base, trio.agents, r=r)
    assert_same(written, expected | {HEAD: expected[EMBEDDING]})


@BOTH
def test_tied_and_untied_heads_may_be_mixed(trio: Trio, method, r):
    # Only one agent stores the head that the base takes from its embedding.
    coder = next(iter(trio.agents))
    stored = trio.agents[coder] | {HEAD: trio.agents[coder][EMBEDDING].clone()}
    write_weights(Path(coder), stored, Path(coder))
    written = trio.merge(method)
    expected = reference.merge(trio.base, trio.agents, r=r)
    assert_same(written, expected | {HEAD: expected[EMBEDDING]})


@BOTH
def test_untied_heads_are_weights_of_their_own(tmp_path, method, r):
    trio = Trio(tmp_path, tie_word_embeddings=False)
    assert HEAD in trio.base
    assert_same(trio.merge(method), reference.merge(trio.base, trio.agents, r=r))


# LoRA


@BOTH
def test_lora_agents_are_merged_as_if_merged_before(trio: Trio, method, r):
    import peft

    adapters = {}
    for seed, targets in enumerate((["q_proj", "up_proj"], ["v_proj"])):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(trio.base_path, dtype=torch.bfloat16)
        lora = peft.LoraConfig(
            r=2, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM"
        )
        folder = trio.folder / f"adapter{seed}"
        peft.get_peft_model(model, lora).save_pretrained(folder)
        adapters[f"{trio.base_path}+{folder}"] = folder
    whole = next(iter(trio.agents))
    config = trio.config(method, models=[{"model": model} for model in [*adapters, whole]])
    cache = trio.folder / "cache"
    written = merge_yaml(config, trio.folder / "merged", "--lora-merge-cache", str(cache))
    agents = {}
    for reference_name, folder in adapters.items():
        model = AutoModelForCausalLM.from_pretrained(trio.base_path, dtype=torch.bfloat16)
        merged = peft.PeftModel.from_pretrained(model, folder).merge_and_unload()
        agents[reference_name] = {k: v for k, v in merged.state_dict().items() if k in trio.base}
    agents[whole] = trio.agents[whole]
    assert_same(written, reference.merge(trio.base, agents, r=r))


@pytest.mark.parametrize(
    "stored", [(b, a) for b in DTYPES for a in DTYPES if a != b] + [(DTYPES[3],) * 2]
)
def test_mixed_dtypes_among_inputs(trio: Trio, stored):
    base_dtype, agent_dtype = stored
    base = {name: tensor.to(base_dtype) for name, tensor in trio.base.items()}
    write_weights(Path(trio.base_path), base, Path(trio.base_path))
    agents = {}
    for number, (path, weights) in enumerate(trio.agents.items()):
        dtype = agent_dtype if number else base_dtype
        agents[path] = {name: tensor.to(dtype) for name, tensor in weights.items()}
        write_weights(Path(path), agents[path], Path(path))
    promoted = torch.promote_types(base_dtype, agent_dtype)
    assert_same(trio.merge("ram"), reference.merge(base, agents, r=0.0), promoted)
    assert_same(trio.merge("ram_plus"), reference.merge(base, agents, r=0.1), promoted)
    linear = trio.config("linear", parameters={"weight": 1.0})
    theirs = merge_yaml(
        linear | {"models": [*linear["models"], {"model": trio.base_path}]}, trio.folder / "linear"
    )
    assert {t.dtype for t in theirs.values()} == {promoted}


@BOTH
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32", "float64"])
def test_dtype_and_out_dtype(tmp_path, method, r, dtype):
    trio = Trio(tmp_path, dtype=torch.float32)
    first = getattr(torch, dtype or "float32")
    base = {name: tensor.to(first) for name, tensor in trio.base.items()}
    agents = {m: {n: t.to(first) for n, t in w.items()} for m, w in trio.agents.items()}
    expected = reference.merge(base, agents, r=r)
    for out_dtype in (None, "bfloat16", "float16", "float32", "float64"):
        changes = {"dtype": dtype, "out_dtype": out_dtype}
        written = trio.merge(method, **{key: value for key, value in changes.items() if value})
        last = getattr(torch, out_dtype) if out_dtype else first
        # torch rounds float64 to sixteen bits by way of float32; the kernels' tests hold this.
        rounded = {name: blocks.rounded(tensor, last) for name, tensor in expected.items()}
        assert_same(written, rounded, last)


# Files


@BOTH
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("options", [[], ["--lazy-unpickle"]])
def test_pickled_checkpoints_give_the_bytes_of_safetensors(trio: Trio, method, r, shards, options):
    plain = trio.merge(method)
    for path in (trio.base_path, *trio.agents):
        pickle(Path(path), shards)
    again = trio.merge(method, *options)
    assert_same(again, plain)


def pickle(folder: Path, shards: int) -> None:
    """Store a model as one or several ``pytorch_model.bin``."""
    weights = read_weights(folder)
    (folder / "model.safetensors").unlink()
    if shards == 1:
        torch.save(weights, folder / "pytorch_model.bin")
        return
    names = sorted(weights)
    weight_map = {}
    for number in range(shards):
        file = f"pytorch_model-{number + 1:05d}-of-{shards:05d}.bin"
        part = {name: weights[name] for name in names[number::shards]}
        torch.save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
