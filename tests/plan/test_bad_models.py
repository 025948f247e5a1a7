"""Models that cannot be merged end in one clear line, before a merge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from models import Trio, make_base
from refusals import BOTH, agent, change, refusal
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


@BOTH
def test_no_base(trio: Trio, method):
    line = refusal(trio, method, base_model=None)
    assert f"Error: {method}: Merge method requires a base input" in line
    assert "The method needs `base_model:`" in line


@BOTH
def test_no_agents(trio: Trio, method):
    line = refusal(trio, method, models=[{"model": trio.base_path}])
    assert f"Error: {method}: Merge method requires at least 1 non-base inputs" in line
    assert "every agent once under `models:`" in line


@BOTH
@pytest.mark.parametrize("twice", ["base", "tool"])
def test_a_model_twice(trio: Trio, method, twice):
    models = [{"model": model} for model in trio.agents]
    models += [{"model": str(trio.folder / twice)}] * (2 if twice == "base" else 1)
    line = refusal(trio, method, models=models)
    assert f"Error: {method}: Duplicate merge inputs" in line
    assert str(trio.folder / twice) in line


@BOTH
def test_a_folder_that_does_not_exist(trio: Trio, method):
    missing = str(trio.folder / "nobody")
    line = refusal(trio, method, models=[{"model": missing}])
    assert line == (
        f"Error: model {missing}: there is no folder {missing}. Correct the path; a model of the "
        "hub is written as owner/name."
    )


@BOTH
def test_one_folder_in_two_spellings(trio: Trio, method):
    tool = str(agent(trio))
    models = [{"model": tool}, {"model": tool + "/"}]
    assert refusal(trio, method, models=models) == (
        f"Error: the models {tool} and {tool}/ are read from the same files; a merge would count "
        "its updates twice. Name every model once, and in one way."
    )


@BOTH
def test_a_local_folder_that_looks_like_a_model_of_the_hub(trio: Trio, method, monkeypatch):
    monkeypatch.chdir(trio.folder)
    line = refusal(trio, method, models=[{"model": "agents/nobody"}])
    assert line.startswith("Error: model agents/nobody: the configuration agents/nobody cannot be ")
    assert "A local folder is written as ./folder, a model of the hub as owner/name;" in line


@BOTH
def test_a_missing_adapter(trio: Trio, method):
    missing = str(trio.folder / "adapter")
    line = refusal(trio, method, models=[{"model": f"{agent(trio)}+{missing}"}])
    assert line.startswith(
        f"Error: model {agent(trio)}+{missing}: there is no adapter folder {missing}. Correct the "
    )


@BOTH
def test_a_folder_without_weights(trio: Trio, method):
    (agent(trio) / "model.safetensors").unlink()
    line = refusal(trio, method)
    assert line.startswith(f"Error: model {agent(trio)}: cannot read {agent(trio)}: Unable to find")
    assert line.endswith("Repair or re-download this checkpoint.")


@BOTH
def test_a_folder_without_configuration(trio: Trio, method):
    config = agent(trio) / "config.json"
    config.unlink()
    assert f"cannot read {config}: the file is missing." in refusal(trio, method)


@BOTH
@pytest.mark.parametrize("kept", [0, 7, 2000, -1])
def test_truncated_and_empty_safetensors(trio: Trio, method, kept):
    file = agent(trio) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    line = refusal(trio, method)
    assert line.startswith(f"Error: model {agent(trio)}: cannot read {agent(trio)}")
    assert line.endswith("Repair or re-download this checkpoint.")


def shard(folder: Path) -> list[Path]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    return sorted(folder.glob("*.safetensors"))


@BOTH
def test_an_index_that_names_a_missing_shard(trio: Trio, method):
    first = shard(agent(trio))[0]
    first.unlink()
    line = refusal(trio, method)
    assert line == (
        f"Error: model {agent(trio)}: cannot read {first}: the file is missing. Repair or "
        "re-download this checkpoint."
    )


@BOTH
def test_an_empty_shard(trio: Trio, method):
    first = shard(agent(trio))[0]
    first.write_bytes(b"")
    assert f"cannot read {first}: the file is empty" in refusal(trio, method)


@BOTH
def test_an_index_that_promises_too_much(trio: Trio, method):
    plain = trio.merge(method)
    shutil.rmtree(trio.folder / "merged")
    shard(agent(trio))
    index = agent(trio) / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    file = next(iter(content["weight_map"].values()))
    # Nobody needs the first one; the second one is a weight of the model.
    content["weight_map"]["model.extra"] = file
    index.write_text(json.dumps(content))
    again = trio.merge(method)
    assert all(torch.equal(again[name], plain[name]) for name in plain)
    name = "model.norm.weight"
    where = agent(trio) / content["weight_map"][name]
    save_file({n: t for n, t in load_file(where).items() if n != name}, where)
    assert refusal(trio, method) == (
        f"Error: model {agent(trio)}: cannot read {where}: its index promises tensor {name}. "
        "Repair or re-download this checkpoint."
    )
    index.write_text("{")
    assert f"Error: model {agent(trio)}: cannot read" in refusal(trio, method)


@BOTH
def test_a_missing_required_tensor(trio: Trio, method):
    name = "model.layers.1.mlp.up_proj.weight"
    change(trio, "tool", **{name: None})
    line = refusal(trio, method)
    assert line.startswith(
        f"Error: model {agent(trio)}: tensor {name} is missing, and the architecture requires it."
    )


@BOTH
def test_another_architecture(trio: Trio, method):
    config = json.loads((agent(trio) / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (agent(trio) / "config.json").write_text(json.dumps(config))
    line = refusal(trio, method)
    assert line == (
        f"Error: the base {trio.base_path} (Qwen2ForCausalLM) and the model {agent(trio)} "
        "(LlamaForCausalLM) do not fit together. All models must be of one architecture and size, "
        "with the base that the agents were trained from as `base_model:`. --allow-crimes merges "
        "them by the base's."
    )


@BOTH
def test_another_shape(trio: Trio, method):
    shutil.rmtree(agent(trio))
    make_base(agent(trio), intermediate_size=64)
    line = refusal(trio, method)
    assert f"Error: model {agent(trio)}, tensor model.layers.0.mlp." in line
    assert f"but the base {trio.base_path} has [" in line
    assert "All models must be of one architecture and size" in line


@BOTH
def test_another_vocabulary_points_to_the_tokenizer(trio: Trio, method):
    shutil.rmtree(agent(trio))
    make_base(agent(trio), vocab_size=104)
    line = refusal(trio, method)
    assert line == (
        f"Error: model {agent(trio)}, tensor model.embed_tokens.weight: shape [104, 32], but the "
        f"base {trio.base_path} has [96, 32]. The vocabularies differ: align them with "
        "`tokenizer: {source: union}`."
    )
