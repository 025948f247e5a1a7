"""``ram_directions`` on every road through mergekit: what is written follows the naive formula."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import directions_reference as reference
import pytest
import torch
import yaml
from click.testing import CliRunner
from directions_reference import assert_close
from mergekit.config import MergeConfiguration
from mergekit.graph import Executor
from mergekit.merge_methods import merge_state_dicts
from mergekit.options import MergeOptions
from models import (
    TOKENS,
    Trio,
    Weights,
    forget_loaded_models,
    merge_yaml,
    read_weights,
    run_yaml,
    save_tokenizer,
    succeed,
    write_weights,
)
from reference import same_bits
from roads import layer, outside
from transformers import AutoModelForCausalLM, AutoTokenizer

METHOD = "ram_directions"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def assert_merged(
    written: Weights,
    base: Weights,
    agents: Mapping[str, Weights],
    dtype: torch.dtype = torch.bfloat16,
    **settings: Any,
) -> None:
    assert set(written) == set(base)
    for name, tensor in base.items():
        held = {model: weights[name] for model, weights in agents.items() if name in weights}
        expected = reference.merge_tensor(tensor, held, **settings)
        assert written[name].dtype == dtype
        assert_close(written[name], expected, tensor, list(held.values()), name)


def test_a_yaml_file_gives_the_formula(trio: Trio):
    assert_merged(trio.merge(METHOD), trio.base, trio.agents)


def test_all_parameters_reach_the_arithmetic(trio: Trio):
    config = trio.config(METHOD)
    weight = {}
    for number, model in enumerate(config["models"]):
        weight[model["model"]] = (1.0, 0.5, -0.3)[number]
        model["parameters"] = {"weight": weight[model["model"]]}
    settings = {"epsilon": 5e-3, "ridge": 0.05, "scale": 0.7}
    written = merge_yaml(config | {"parameters": settings}, trio.folder / "merged")
    assert_merged(written, trio.base, trio.agents, weight=weight, **settings)


@pytest.mark.parametrize(
    ("parameter", "mlp", "other"), [("epsilon", 5e-3, 1e-5), ("ridge", 3.0, 0.1), ("scale", 2, 1)]
)
@pytest.mark.parametrize("level", ["top", "module", "slice"])
def test_filters_at_every_level(trio: Trio, level, parameter, mlp, other):
    parameters = {parameter: [{"filter": "mlp", "value": mlp}, {"value": other}]}
    models = trio.config(METHOD)["models"]
    config: dict[str, Any] = {"merge_method": METHOD, "base_model": trio.base_path}
    if level == "top":
        config |= {"models": models, "parameters": parameters}
    elif level == "module":
        config["modules"] = {"default": {"models": models, "parameters": parameters}}
    else:
        sources = [{"model": m, "layer_range": [0, 2]} for m in (*trio.agents, trio.base_path)]
        config["slices"] = [{"sources": sources, "parameters": parameters}]
    written = merge_yaml(config, trio.folder / "merged")
    for is_mlp, value in ((True, mlp), (False, other)):
        names = {name for name in trio.base if ("mlp" in name) == is_mlp}
        assert_merged(
            {name: written[name] for name in names},
            {name: trio.base[name] for name in names},
            trio.agents,
            **{parameter: value},
        )


def test_gradients_run_over_the_layers(trio: Trio):
    written = trio.merge(METHOD, parameters={"ridge": [0.05, 1.0], "scale": [0.5, 1.0]})
    for number, settings in enumerate([{"ridge": 0.05, "scale": 0.5}, {"ridge": 1, "scale": 1}]):
        names = {name for name in trio.base if f"layers.{number}." in name}
        assert_merged(
            {name: written[name] for name in names},
            {name: trio.base[name] for name in names},
            trio.agents,
            **settings,
        )


def test_an_agent_of_weight_zero_in_some_tensors_is_left_out_there(trio: Trio):
    config = trio.config(METHOD)
    chosen = config["models"][1]["model"]
    config["models"][1]["parameters"] = {"weight": [{"filter": "mlp", "value": 0}, {"value": 1}]}
    written = merge_yaml(config, trio.folder / "merged")
    for name, tensor in trio.base.items():
        agents = {m: w for m, w in trio.agents.items() if m != chosen or "mlp" not in name}
        assert_merged({name: written[name]}, {name: tensor}, agents)


def test_slices_with_a_repeated_layer_and_agents_of_different_ranges(trio: Trio):
    coder, tool, memory = trio.agents
    rows = [(0, {coder: 0, tool: 0, memory: 0}), (0, {coder: 0, tool: 1, memory: 1})]
    slices = [
        {
            "sources": [
                {"model": model, "layer_range": [source, source + 1]}
                for model, source in {trio.base_path: base_layer, **agents}.items()
            ]
        }
        for base_layer, agents in rows
    ]
    config = {"merge_method": METHOD, "base_model": trio.base_path, "slices": slices}
    written = merge_yaml(config, trio.folder / "merged")
    base = outside(trio.base) | layer(trio.base, 0, 0) | layer(trio.base, 0, 1)
    agents = {m: outside(w) | layer(w, 0, 0) for m, w in trio.agents.items()}
    agents[coder] |= layer(trio.agents[coder], 0, 1)
    agents[tool] |= layer(trio.agents[tool], 1, 1)
    agents[memory] |= layer(trio.agents[memory], 1, 1)
    assert_merged(written, base, agents)


def test_a_union_of_vocabularies_is_merged_after_permutation(trio: Trio):
    coder, tool, memory = trio.agents
    for path in (trio.base_path, coder):
        save_tokenizer(Path(path))
    original = {model: dict(weights) for model, weights in trio.agents.items()}
    flipped = original[memory] | {EMBEDDING: original[memory][EMBEDDING].flip(0)}
    write_weights(Path(memory), flipped, trio.folder / "base")
    save_tokenizer(Path(memory), TOKENS[::-1])
    grown = torch.cat([original[tool][EMBEDDING], torch.full((1, 32), 0.5, dtype=torch.bfloat16)])
    write_weights(Path(tool), original[tool] | {EMBEDDING: grown}, trio.folder / "base")
    save_tokenizer(Path(tool), [*TOKENS, "<new>"])
    settings = json.loads((Path(tool) / "config.json").read_text())
    (Path(tool) / "config.json").write_text(json.dumps(settings | {"vocab_size": 97}))
    config = trio.config(METHOD, tokenizer={"source": "union", "pad_to_multiple_of": 8})
    succeed(run_yaml(config, trio.folder / "merged"))
    vocabulary = AutoTokenizer.from_pretrained(trio.folder / "merged").get_vocab()
    order = sorted(vocabulary, key=vocabulary.__getitem__)
    rows = [[*TOKENS, "<new>"].index(token) for token in order]

    def extended(embedding: torch.Tensor) -> torch.Tensor:
        known = torch.cat([embedding[:96], grown[96:]])[rows]
        return torch.cat([known, known.mean(dim=0).expand(7, -1)])

    base = trio.base | {EMBEDDING: extended(trio.base[EMBEDDING])}
    agents = {m: w | {EMBEDDING: extended(w[EMBEDDING])} for m, w in original.items()}
    assert_merged(read_weights(trio.folder / "merged"), base, agents)


def test_a_stored_copy_of_a_tied_head_is_merged_alike(trio: Trio):
    for path, weights in {trio.base_path: trio.base, **trio.agents}.items():
        write_weights(Path(path), weights | {HEAD: weights[EMBEDDING].clone()}, Path(path))
    written = trio.merge(METHOD)
    assert same_bits(written.pop(HEAD), written[EMBEDDING])
    assert_merged(written, trio.base, trio.agents)


def test_lora_agents_are_merged_as_if_merged_before(trio: Trio):
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
    config = trio.config(METHOD, models=[{"model": model} for model in [*adapters, whole]])
    cache = trio.folder / "cache"
    written = merge_yaml(config, trio.folder / "merged", "--lora-merge-cache", str(cache))
    agents = {whole: trio.agents[whole]}
    for name, folder in adapters.items():
        model = AutoModelForCausalLM.from_pretrained(trio.base_path, dtype=torch.bfloat16)
        merged = peft.PeftModel.from_pretrained(model, folder).merge_and_unload()
        agents[name] = {k: v for k, v in merged.state_dict().items() if k in trio.base}
    assert_merged(written, trio.base, agents)


@pytest.mark.parametrize("dtype", [None, "float16", "float64"])
@pytest.mark.parametrize("out_dtype", [None, "bfloat16", "float32"])
def test_dtype_and_out_dtype(tmp_path, dtype, out_dtype):
    trio = Trio(tmp_path, dtype=torch.float32)
    first = getattr(torch, dtype or "float32")
    base = {name: tensor.to(first) for name, tensor in trio.base.items()}
    agents = {m: {n: t.to(first) for n, t in w.items()} for m, w in trio.agents.items()}
    changes = {"dtype": dtype, "out_dtype": out_dtype}
    written = trio.merge(METHOD, **{key: value for key, value in changes.items() if value})
    assert_merged(written, base, agents, getattr(torch, out_dtype) if out_dtype else first)


def test_pickled_checkpoints_give_the_bytes_of_safetensors(trio: Trio):
    plain = trio.merge(METHOD)
    for path in map(Path, (trio.base_path, *trio.agents)):
        torch.save(read_weights(path), path / "pytorch_model.bin")
        (path / "model.safetensors").unlink()
    again = trio.merge(METHOD)
    assert all(same_bits(again[name], tensor) for name, tensor in plain.items())


def test_in_memory_everything_is_merged_too(trio: Trio):
    models = {"base": trio.base, **trio.agents}
    merged = merge_state_dicts(models, METHOD, base="base", parameters={"ridge": 0.1})
    assert_merged(merged, trio.base, trio.agents, ridge=0.1)


def test_a_plan_in_memory_gives_the_bytes_of_one_to_disk(trio: Trio):
    from mergekit.architecture import get_architecture_info
    from mergekit.plan import MergePlanner

    written = trio.merge(METHOD)
    forget_loaded_models()
    config = MergeConfiguration.model_validate(trio.config(METHOD))
    options = MergeOptions(quiet=True)
    info = get_architecture_info(config, options)
    planner = MergePlanner(config, info, options, config.base_model.config())
    results = Executor(planner.plan_in_memory()).run(quiet=True)
    found = {task.weight_info.name: tensor for task, tensor in results}
    assert found.keys() == written.keys()
    assert all(same_bits(found[name], tensor) for name, tensor in written.items())


def test_mergekit_multi_merges_in_steps(trio: Trio, tmp_path):
    from mergekit.scripts.multimerge import main

    first = trio.config(METHOD)
    agent = first["models"][0]
    final = {**first, "parameters": {"ridge": 1.0}, "models": [{"model": "step"}, agent]}
    recipe = tmp_path / "multi.yml"
    recipe.write_text(yaml.safe_dump_all([{"name": "step", **first}, final]))
    forget_loaded_models()
    options = ["--intermediate-dir", str(tmp_path / "steps"), "--out-path", str(tmp_path / "out")]
    succeed(CliRunner().invoke(main, [str(recipe), *options, "--no-copy-tokenizer"]))
    step = read_weights(tmp_path / "steps" / "step")
    assert_merged(step, trio.base, trio.agents)
    agents = {"step": step, "agent": trio.agents[agent["model"]]}
    assert_merged(read_weights(tmp_path / "out"), trio.base, agents, ridge=1.0)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_mergekit_pytorch_merges_raw_checkpoints(tmp_path, suffix):
    from test_raw_checkpoints import merge_raw, policies

    base, agents = policies(suffix, tmp_path)
    written = merge_raw(tmp_path, METHOD, parameters={"ridge": 0.1})
    assert torch.equal(written.pop("steps"), torch.tensor([7]))
    assert_merged(written, base, agents, torch.float32, ridge=0.1)
