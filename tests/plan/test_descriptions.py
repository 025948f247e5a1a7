"""Which files of a folder are the model, and heads that are stored apart from their embedding."""

from __future__ import annotations

import json
import shutil

import pytest
import reference
import torch
from families import Family, assert_weights, warnings_of
from models import read_weights
from safetensors.torch import save_file

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
INDEX = "model.safetensors.index.json"


def stale(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}


def test_a_single_file_goes_before_an_index(tmp_path, caplog):
    family = Family(tmp_path)
    folder = family.path("tool")
    save_file(stale(family.agents["tool"]), folder / "model-00001-of-00001.safetensors")
    index = dict.fromkeys(family.base, "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert_weights(written, family.expected())
    assert warnings == [
        f"model {folder}: its folder describes weights more than once; model.safetensors is read, "
        f"as transformers does, and {INDEX} is not"
    ]
    assert family.findings()["several-descriptions"] == warnings[0] + "."


def test_safetensors_go_before_pickles(tmp_path, caplog):
    family = Family(tmp_path)
    torch.save(stale(family.agents["tool"]), family.path("tool") / "pytorch_model.bin")
    with warnings_of(caplog) as warnings:
        assert_weights(family.merge(), family.expected())
    assert "model.safetensors is read" in warnings[0]
    assert "pytorch_model.bin is not" in warnings[0]


def test_a_single_pickle_goes_before_an_index_of_pickles(tmp_path):
    family = Family(tmp_path)
    folder = family.path("tool")
    (folder / "model.safetensors").unlink()
    torch.save(family.agents["tool"], folder / "pytorch_model.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(family.base, "gone.bin")}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert_weights(family.merge(), family.expected())


def test_an_index_without_its_shards_beside_a_whole_file_is_no_error(tmp_path):
    family = Family(tmp_path)
    index = {"metadata": {}, "weight_map": dict.fromkeys(family.base, "gone.safetensors")}
    (family.path("base") / INDEX).write_text(json.dumps(index))
    assert_weights(family.merge(), family.expected())


def test_a_file_that_the_configuration_names_is_read(tmp_path):
    family = Family(tmp_path)
    folder = family.path("tool")
    shutil.move(folder / "model.safetensors", folder / "policy.safetensors")
    save_file(stale(family.agents["tool"]), folder / "model.safetensors")
    family.configure("tool", transformers_weights="policy.safetensors")
    assert_weights(family.merge(), family.expected())


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo"])
@pytest.mark.parametrize("name", ["base", "tool"])
def test_an_index_that_lists_less_or_more_than_its_shards_hold(tmp_path, name, architecture):
    family = Family(tmp_path, architecture)
    folder = family.path(name)
    shutil.move(folder / "model.safetensors", folder / "part.safetensors")
    index = dict.fromkeys(family.base, "part.safetensors")
    del index["model.layers.0.mlp.up_proj.weight"]
    index["model.layers.0.self_attn.rotary_emb.inv_freq"] = "part.safetensors"
    index["mtp.norm.weight"] = "mtp.safetensors"
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    assert_weights(family.merge(), family.expected())


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo"])
def test_a_base_whose_shard_is_gone_is_refused(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    folder = family.path("base")
    gone = {name: t for name, t in family.base.items() if ".layers.1." in name}
    save_file({n: t for n, t in family.base.items() if n not in gone}, folder / "a.safetensors")
    index = {name: "b.safetensors" if name in gone else "a.safetensors" for name in family.base}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "model.safetensors").unlink()
    assert family.refusal() == (
        f"Error: model {folder}: cannot read {folder / 'b.safetensors'}: the file is missing. "
        "Repair or re-download this checkpoint."
    )


# Heads


@pytest.mark.parametrize("architecture", ["Qwen2, tied", "Gemma3, text", "Helium, tied"])
@pytest.mark.parametrize("holders", [["tool"], ["base"], ["base", "coder", "tool"]])
def test_a_head_that_differs_is_a_weight_of_its_own(tmp_path, caplog, architecture, holders):
    family = Family(tmp_path, architecture)
    assert HEAD not in family.base
    base = family.base | {HEAD: family.base[EMBEDDING].clone()}
    agents = {name: own | {HEAD: own[EMBEDDING].clone()} for name, own in family.agents.items()}
    for name in holders:
        own = base if name == "base" else agents[name]
        own[HEAD][: 30 + len(name)] += 0.25
        family.write(name, own)
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert_weights(written, family.expected(base, agents))
    counts = reference.count(base, agents)
    record = family.record()
    assert record["parameters"] == counts.parameters
    assert HEAD in json.dumps(record["tensors"])
    for name, agent in zip(agents, record["agents"], strict=True):
        assert agent["rescale"] == pytest.approx(counts.rescale(name, 0.1, 2.0))
    paths = ", ".join(sorted(str(family.path(name)) for name in holders))
    assert warnings == [
        f"{paths}: {HEAD} is stored and differs from {EMBEDDING}, though the base's configuration "
        "ties them (tie_word_embeddings: true). It is merged as a weight of its own, and the "
        "output's configuration says tie_word_embeddings: false."
    ]
    loaded = type(family.model).from_pretrained(family.path("out"), dtype=torch.bfloat16)
    assert loaded.config.tie_word_embeddings is False
    assert torch.equal(loaded.lm_head.weight, written[HEAD])
    assert torch.equal(loaded.model.embed_tokens.weight, written[EMBEDDING])
    assert "untied-head" in family.findings()


@pytest.mark.parametrize("architecture", ["Qwen2, tied", "Helium, tied"])
def test_a_stored_copy_of_the_embedding_changes_nothing(tmp_path, caplog, architecture):
    family = Family(tmp_path, architecture)
    plain = family.merge()
    parameters = family.record()["parameters"]
    own = family.agents["tool"]
    family.write("tool", own | {HEAD: own[EMBEDDING].clone()})
    with warnings_of(caplog) as warnings:
        again = family.merge()
    assert [w for w in warnings if "output folder" not in w] == []
    assert_weights(again, plain | {HEAD: plain[EMBEDDING]})
    assert family.record()["parameters"] == parameters
    config = json.loads((family.path("out") / "config.json").read_text())
    assert config["tie_word_embeddings"] is True


# The output's configuration


@pytest.mark.parametrize("architecture", ["Qwen2", "Olmo", "Qwen2.5-VL"])
def test_the_vocabulary_of_a_truncated_merge_is_that_of_its_rows(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    padded = {
        name: torch.cat([t, t[:8]]) if name in (HEAD, EMBEDDING) else t
        for name, t in family.base.items()
    }
    family.write("base", padded)
    config = json.loads((family.path("base") / "config.json").read_text())
    owner = config.get("text_config", config)
    owner["vocab_size"] = 104
    (family.path("base") / "config.json").write_text(json.dumps(config))
    written = family.merge("--unsafe-truncate-embeddings")
    assert_weights(written, family.expected())
    loaded, info = type(family.model).from_pretrained(
        family.path("out"), dtype=torch.bfloat16, output_loading_info=True
    )
    assert loaded.get_input_embeddings().weight.shape[0] == 96
    assert loaded.config.get_text_config().vocab_size == 96
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert set(read_weights(family.path("out"))) == set(family.base)
