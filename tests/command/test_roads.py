"""Every road through mergekit: what is written equals the naive reference, bit for bit.

The README lists which test covers which road.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import transformers
import yaml
from click.testing import CliRunner
from models import (
    TOKENS,
    Trio,
    Weights,
    make_agent,
    merge_yaml,
    read_weights,
    run_yaml,
    save_tokenizer,
    succeed,
    tiny_config,
    write_weights,
)
from reference import same_bits
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

BOTH = pytest.mark.parametrize(("method", "r"), [("ram", 0.0), ("ram_plus", 0.1)])

Agents = Mapping[str, Weights]


def assert_same(written: Weights, expected: Weights, dtype: torch.dtype = torch.bfloat16) -> None:
    assert set(written) == set(expected)
    for name, tensor in expected.items():
        assert same_bits(written[name], tensor.to(dtype)), name


# Slices


def layer(weights: Weights, source: int, target: int) -> Weights:
    """One layer's weights under the names of another layer."""
    prefix = f"model.layers.{source}."
    return {
        f"model.layers.{target}.{name.removeprefix(prefix)}": tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }


def outside(weights: Weights) -> Weights:
    return {name: tensor for name, tensor in weights.items() if ".layers." not in name}


@BOTH
def test_slices_with_a_repeated_layer_and_agents_of_different_ranges(trio: Trio, method, r):
    coder, tool, memory = trio.agents
    # Per layer of the output: the base's layer, and the agents of this slice with theirs.
    rows = [
        (0, {coder: 0, tool: 0, memory: 0}),
        (0, {coder: 0, tool: 1, memory: 1}),
    ]
    slices = [
        {
            "sources": [
                {"model": model, "layer_range": [source, source + 1]}
                for model, source in {trio.base_path: base_layer, **agents}.items()
            ]
        }
        for base_layer, agents in rows
    ]
    # The last slice lacks one agent, and so do the weights after the layers.
    slices[1]["sources"].pop()
    config = {"merge_method": method, "base_model": trio.base_path, "slices": slices}
    written = merge_yaml(config, trio.folder / "merged")
    base = outside(trio.base) | layer(trio.base, 0, 0) | layer(trio.base, 0, 1)
    agents = {
        model: outside(trio.agents[model]) | layer(trio.agents[model], 0, 0)
        for model in trio.agents
    }
    agents[coder] |= layer(trio.agents[coder], 0, 1)
    agents[tool] |= layer(trio.agents[tool], 1, 1)
    del agents[memory]["model.norm.weight"]
    assert_same(written, reference.merge(base, agents, r=r))


# Parameters: filters, gradients, and where they may stand


def expected_with(
    base: Weights, agents: Agents, choose: Callable[[str, str], dict[str, Any]]
) -> Weights:
    """Merge with settings per tensor: ``choose(tensor, agent)`` gives epsilon, r, alpha, …."""
    totals = {model: [0] * len(agents) for model in agents}
    for name, tensor in base.items():
        settings = {model: choose(name, model) for model in agents}
        epsilon = next(iter(settings.values())).get("epsilon", 1e-5)
        taking_part = {m: {"w": agents[m][name]} for m in agents if settings[m].get("weight", 1)}
        counts = reference.count({"w": tensor}, taking_part, epsilon)
        for model, degree in counts.overlap_degree.items():
            for k, number in enumerate(degree):
                totals[model][k] += number
    whole = reference.Counts(overlap_degree=totals)
    merged = {}
    for name, tensor in base.items():
        settings = {model: choose(name, model) for model in agents}
        shared = next(iter(settings.values()))
        factors = {
            m: s["rescale"]
            if "rescale" in s
            else whole.rescale(m, s.get("r", 0.1), s.get("alpha", 2.0))
            for m, s in settings.items()
        }
        merged[name] = reference.merge_tensor(
            tensor,
            {model: weights[name] for model, weights in agents.items()},
            epsilon=shared.get("epsilon", 1e-5),
            rescale=factors,
            weight={model: s.get("weight", 1.0) for model, s in settings.items()},
            scale=shared.get("scale", 1.0),
            overlap_power=shared.get("overlap_power", 1.0),
        )
    return merged


PER_TENSOR = {
    "epsilon": (5e-3, 1e-5),
    "r": (0.7, 0.1),
    "alpha": (0.2, 2.0),
    "scale": (0.5, 1.0),
    "overlap_power": (0.5, 1.0),
}


@pytest.mark.parametrize("level", ["top", "module", "slice"])
@pytest.mark.parametrize("parameter", PER_TENSOR)
def test_filters_at_every_level(trio: Trio, level, parameter):
    mlp, other = PER_TENSOR[parameter]
    parameters = {parameter: [{"filter": "mlp", "value": mlp}, {"value": other}]}
    models = trio.config("ram_plus")["models"]
    config: dict[str, Any] = {"merge_method": "ram_plus", "base_model": trio.base_path}
    if level == "top":
        config |= {"models": models, "parameters": parameters}
    elif level == "module":
        config["modules"] = {"default": {"models": models, "parameters": parameters}}
    else:
        sources = [{"model": model, "layer_range": [0, 2]} for model in trio.agents]
        sources.append({"model": trio.base_path, "layer_range": [0, 2]})
        config["slices"] = [{"sources": sources, "parameters": parameters}]
    written = merge_yaml(config, trio.folder / "merged")
    expected = expected_with(
        trio.base, trio.agents, lambda name, _: {parameter: mlp if "mlp" in name else other}
    )
    assert_same(written, expected)


@pytest.mark.parametrize(("parameter", "values"), [("weight", (0.0, 1.0)), ("rescale", (1.5, 0.5))])
def test_filters_of_one_agent(trio: Trio, parameter, values):
    config = trio.config("ram_plus")
    chosen = config["models"][1]["model"]
    config["models"][1]["parameters"] = {
        parameter: [{"filter": "mlp", "value": values[0]}, {"value": values[1]}]
    }
    written = merge_yaml(config, trio.folder / "merged")

    def choose(name: str, model: str) -> dict[str, Any]:
        return {parameter: values["mlp" not in name]} if model == chosen else {}

    assert_same(written, expected_with(trio.base, trio.agents, choose))


def test_gradients_run_over_the_layers(trio: Trio):
    written = trio.merge("ram_plus", parameters={"r": [0.0, 0.8], "scale": [0.5, 1.0]})

    def choose(name: str, _: str) -> dict[str, Any]:
        at_the_end = "layers.1." in name
        return {"r": 0.8, "scale": 1.0} if at_the_end else {"r": 0.0, "scale": 0.5}

    assert_same(written, expected_with(trio.base, trio.agents, choose))


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


# Dtypes


DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@BOTH
@pytest.mark.parametrize(
    "stored", [(b, a) for b in DTYPES for a in DTYPES if a != b] + [(DTYPES[3],) * 2]
)
def test_mixed_dtypes_among_inputs(trio: Trio, method, r, stored):
    base_dtype, agent_dtype = stored
    base = {name: tensor.to(base_dtype) for name, tensor in trio.base.items()}
    write_weights(Path(trio.base_path), base, Path(trio.base_path))
    agents = {}
    for number, (path, weights) in enumerate(trio.agents.items()):
        dtype = agent_dtype if number else base_dtype
        agents[path] = {name: tensor.to(dtype) for name, tensor in weights.items()}
        write_weights(Path(path), agents[path], Path(path))
    promoted = torch.promote_types(base_dtype, agent_dtype)
    written = trio.merge(method)
    assert_same(written, reference.merge(base, agents, r=r), promoted)
    linear = trio.config("linear", parameters={"weight": 1.0})
    theirs = merge_yaml(
        linear | {"models": [*linear["models"], {"model": trio.base_path}]}, trio.folder / "linear"
    )
    assert {t.dtype for t in theirs.values()} == {promoted}


@BOTH
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("out_dtype", [None, "bfloat16", "float16", "float32", "float64"])
def test_dtype_and_out_dtype(tmp_path, method, r, dtype, out_dtype):
    trio = Trio(tmp_path, dtype=torch.float32)
    first = getattr(torch, dtype or "float32")
    base = {name: tensor.to(first) for name, tensor in trio.base.items()}
    agents = {m: {n: t.to(first) for n, t in w.items()} for m, w in trio.agents.items()}
    changes = {"dtype": dtype, "out_dtype": out_dtype}
    written = trio.merge(method, **{key: value for key, value in changes.items() if value})
    expected = reference.merge(base, agents, r=r)
    assert_same(written, expected, getattr(torch, out_dtype) if out_dtype else first)


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


# Architectures, up to a generation by transformers


COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_experts": 4}
ARCHITECTURES = {
    "Qwen2": lambda: tiny_config(),
    "Llama": lambda: transformers.LlamaConfig(**COMMON),
    "Mistral": lambda: transformers.MistralConfig(**COMMON),
    "Gemma": lambda: transformers.GemmaConfig(**COMMON, head_dim=16),
    "Gemma2": lambda: transformers.Gemma2Config(**COMMON, head_dim=16),
    "Mixtral": lambda: transformers.MixtralConfig(**COMMON, num_local_experts=4),
    "Qwen3Moe": lambda: transformers.Qwen3MoeConfig(**COMMON, **EXPERTS, head_dim=16),
    "Olmo, which mergekit has to detect": lambda: transformers.OlmoConfig(**COMMON),
    "Qwen2Moe, detected, packed experts": lambda: transformers.Qwen2MoeConfig(
        **COMMON, **EXPERTS, shared_expert_intermediate_size=16
    ),
}


@BOTH
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures_merge_load_and_generate(tmp_path, method, r, architecture):
    torch.manual_seed(0)
    config = ARCHITECTURES[architecture]()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    base, agents = merged_through(tmp_path, model, method)
    expected = reference.merge(base, agents, r=r)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert_state(loaded, expected, model, tmp_path)
    tokens = loaded.generate(torch.tensor([[1, 5, 9]]), max_new_tokens=4, do_sample=False)
    assert tokens.shape[1] > 3


def merged_through(
    folder: Path, model: torch.nn.Module, method: str
) -> tuple[Weights, dict[str, Weights]]:
    """Save a model and three agents of it, merge them, and return their weights."""
    model.save_pretrained(folder / "base")
    agents = {}
    for seed, share in enumerate((0.1, 0.4, 0.5), start=1):
        path = folder / f"agent{seed}"
        agents[str(path)] = make_agent(path, folder / "base", share, seed)
    config = {
        "merge_method": method,
        "base_model": str(folder / "base"),
        "models": [{"model": path} for path in agents],
    }
    merge_yaml(config, folder / "merged")
    return read_weights(folder / "base"), agents


def assert_state(
    loaded: torch.nn.Module, expected: Weights, like: torch.nn.Module, folder: Path
) -> None:
    """The loaded model's parameters are those of the reference, whatever the layout on disk."""
    like.save_pretrained(folder / "expected")
    weights = {name: tensor.bfloat16() for name, tensor in expected.items()}
    write_weights(folder / "expected", weights, folder / "expected")
    right = type(like).from_pretrained(folder / "expected", dtype=torch.bfloat16)
    found, wanted = loaded.state_dict(), right.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert same_bits(found[name], tensor), name


VISION = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 4}
MULTIMODAL_ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}


def mistral3() -> torch.nn.Module:
    towers = {"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "head_dim": 16}
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(**COMMON, head_dim=16).to_dict(),
        vision_config=VISION | towers | {"model_type": "pixtral"},
    )
    return transformers.Mistral3ForConditionalGeneration._from_config(config, dtype=torch.bfloat16)


def qwen25_vl() -> torch.nn.Module:
    """mergekit lists some of its weights in two modules."""
    towers = {"depth": 2, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [0]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=COMMON | {"rope_parameters": MULTIMODAL_ROPE},
        vision_config=VISION | towers,
        tie_word_embeddings=False,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration._from_config(
        config, dtype=torch.bfloat16
    )


@BOTH
@pytest.mark.parametrize("make_model", [mistral3, qwen25_vl])
def test_a_vision_language_model_has_one_ratio_over_its_modules(tmp_path, method, r, make_model):
    torch.manual_seed(0)
    model = make_model()
    base, agents = merged_through(tmp_path, model, method)
    expected = reference.merge(base, agents, r=r)
    assert_same(read_weights(tmp_path / "merged"), expected)
    loaded = type(model).from_pretrained(tmp_path / "merged", dtype=torch.bfloat16)
    tokens = loaded.generate(
        torch.tensor([[5, 6, 9]]), max_new_tokens=4, do_sample=False, pad_token_id=0
    )
    assert tokens.shape[1] > 3


def test_a_module_may_have_its_own_parameters(tmp_path):
    torch.manual_seed(0)
    base, agents = merged_through(tmp_path, mistral3(), "ram_plus")
    models = [{"model": path} for path in agents]
    own = {"r": 0.9, "alpha": 1.0, "epsilon": 5e-3}
    config = {
        "merge_method": "ram_plus",
        "base_model": str(tmp_path / "base"),
        "modules": {
            "text_decoder": {"models": models},
            "multi_modal_projector": {"models": models},
            "vision_tower": {"models": models, "parameters": own},
        },
    }
    written = merge_yaml(config, tmp_path / "merged")
    shared = {"r": 0.1, "alpha": 2.0, "epsilon": 1e-5}

    def choose(name: str, _: str) -> dict[str, Any]:
        return own if name.startswith("vision_tower.") else shared

    assert_same(written, expected_with(base, agents, choose))


# Raw checkpoints


def merge_raw(folder: Path, method: str, *options: str, **changes: Any) -> Weights:
    from mergekit.scripts.merge_raw_pytorch import SimpleLoaderCache, main

    SimpleLoaderCache().loaders.clear()
    paths = sorted(str(path) for path in folder.glob("agent*.*"))
    (base,) = (str(path) for path in folder.glob("base.*"))
    config = {"merge_method": method, "base_model": base, "models": [{"model": p} for p in paths]}
    (folder / "raw.yml").write_text(yaml.safe_dump(config | changes))
    out = folder / "out"
    succeed(CliRunner().invoke(main, [str(folder / "raw.yml"), str(out), *options]))
    return load_file(out / "model.safetensors")


def policies(suffix: str, folder: Path) -> tuple[Weights, dict[str, Weights]]:
    """Policies of a classic RL library: a few layers and a step counter."""
    generator = torch.Generator().manual_seed(0)
    base = {
        "mlp.0.weight": torch.randn(16, 8, generator=generator),
        "mlp.0.bias": torch.randn(16, generator=generator),
        "actor.weight": torch.randn(4, 16, generator=generator),
    }
    found = {}
    for number, share in enumerate((0.2, 0.5)):
        found[str(folder / f"agent{number}{suffix}")] = {
            name: tensor
            + torch.randn(tensor.shape, generator=generator)
            * (torch.rand(tensor.shape, generator=generator) < share)
            for name, tensor in base.items()
        }
    counter = {"steps": torch.tensor([7])}
    for path, weights in {str(folder / f"base{suffix}"): base, **found}.items():
        if suffix == ".safetensors":
            save_file(weights | counter, path)
        else:
            torch.save(weights | counter, path)
    return base, found


@BOTH
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_raw_policies_have_one_ratio_too(tmp_path, method, r, suffix):
    base, agents = policies(suffix, tmp_path)
    written = merge_raw(tmp_path, method)
    assert torch.equal(written.pop("steps"), torch.tensor([7]))
    assert_same(written, reference.merge(base, agents, r=r), torch.float32)


@BOTH
@pytest.mark.parametrize("option", ["--tensor-union", "--tensor-intersection"])
def test_raw_tensors_that_some_models_lack(tmp_path, method, r, option):
    base, agents = policies(".safetensors", tmp_path)
    first, second = agents
    # One agent lacks its head, and one tensor is the base's alone.
    del agents[first]["actor.weight"]
    save_file(agents[first], first)
    save_file(agents[second], second)
    base["log_std"] = torch.ones(4)
    save_file(base, tmp_path / "base.safetensors")
    written = merge_raw(tmp_path, method, option)
    if option == "--tensor-intersection":
        for weights in (base, agents[second]):
            weights.pop("actor.weight")
    base.pop("log_std")
    # mergekit lists the tensors of the agents; what only the base has is not among them.
    assert_same(written, reference.merge(base, agents, r=r), torch.float32)


def test_raw_buffers_that_differ_are_refused(tmp_path):
    _, agents = policies(".safetensors", tmp_path)
    path, weights = next(iter(agents.items()))
    save_file(weights | {"steps": torch.tensor([8])}, path)
    with pytest.raises(AssertionError, match="Error: Non-floating buffer 'steps' differs"):
        merge_raw(tmp_path, "ram_plus")
    assert not (tmp_path / "out").exists()


# Models that stand in several roles


def test_a_base_of_its_own_per_slice(trio: Trio):
    coder, tool, memory = trio.agents
    everyone = [trio.base_path, coder, tool, memory]
    slices = [
        {
            "sources": [
                {"model": model, "layer_range": [number, number + 1]} for model in everyone
            ],
            "base_model": base,
        }
        for number, base in enumerate((trio.base_path, coder))
    ]
    config = {"merge_method": "ram_plus", "base_model": trio.base_path, "slices": slices}
    written = merge_yaml(config, trio.folder / "merged")
    weights = {trio.base_path: trio.base, **trio.agents}

    def role(name: str) -> str:
        late = "layers.1." in name or name == "model.norm.weight"
        return coder if late else trio.base_path

    base = {name: weights[role(name)][name] for name in trio.base}
    agents = {
        model: {name: weights[model][name] for name in trio.base if role(name) != model}
        for model in everyone
    }
    assert_same(written, reference.merge(base, agents, r=0.1))
