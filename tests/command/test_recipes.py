"""Every recipe under ``examples/yaml``: the local ones run, the others planned on stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import directions_reference
import pytest
import reference
import torch
import yaml
from models import (
    make_agent,
    make_base,
    merge_yaml,
    read_weights,
    run_yaml,
    save_tokenizer,
    succeed,
)
from reference import StateDict, same_bits
from transformers import AutoModelForCausalLM

from mergekit_ram.record.check import read_record
from mergekit_ram.record.schema import RECORD_NAME

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "examples" / "yaml").glob("*.yml"))
AGENTS = "./examples/agents/"


def read(recipe: Path) -> dict[str, Any]:
    return yaml.safe_load(recipe.read_text())


def is_local(recipe: Path) -> bool:
    return str(read(recipe)["base_model"]).startswith(AGENTS)


LOCAL = [recipe for recipe in RECIPES if is_local(recipe)]
OTHERS = [recipe for recipe in RECIPES if not is_local(recipe)]


def test_the_recipes_are_all_there():
    assert [recipe.stem for recipe in LOCAL] == [
        "authors-rule",
        "float32-output",
        "harmful-agent",
        "ram",
        "ram_directions",
        "ram_plus",
    ]
    assert [recipe.stem for recipe in OTHERS] == ["llama-3.2-3b", "lora", "qwen2.5-7b"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_says_when_to_use_it(recipe):
    comment = [line for line in recipe.read_text().splitlines() if line.startswith("#")]
    assert any("Take" in line for line in comment)


def weighed(config: dict[str, Any], base: StateDict, agents: dict[str, StateDict]) -> StateDict:
    """The tensors that RAM merges with weights of the agents' own; others are no part of it."""
    filters = {
        model["model"]: model["parameters"]["weight"]
        for model in config["models"]
        if "weight" in model.get("parameters", {})
    }

    def weight(agent: str, tensor: str) -> float:
        values = (each["value"] for each in filters[agent] if each.get("filter", "") in tensor)
        return next(values)

    assert not filters or config["merge_method"] == "ram"
    return {
        name: reference.merge_tensor(
            tensor,
            {agent: weights[name] for agent, weights in agents.items()},
            weight={agent: weight(agent, name) for agent in filters},
        )
        for name, tensor in base.items()
        if any(weight(agent, name) != 1.0 for agent in filters)
    }


@pytest.mark.parametrize("recipe", LOCAL, ids=lambda recipe: recipe.stem)
def test_a_local_recipe_gives_what_the_reference_gives(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = read(recipe)
    written = merge_yaml(recipe.read_text(), tmp_path / "out")
    base = read_weights(Path(config["base_model"]))
    agents = {model["model"]: read_weights(Path(model["model"])) for model in config["models"]}
    settings = config.get("parameters", {})
    if config["merge_method"] == "ram_plus":
        settings = {"r": 0.1, "alpha": 2.0} | settings
    dtype = getattr(torch, config.get("out_dtype", "bfloat16"))
    if config["merge_method"] == "ram_directions":
        for name, tensor in directions_reference.merge(base, agents, **settings).items():
            changed = [agent[name] for agent in agents.values()]
            directions_reference.assert_close(written[name], tensor, base[name], changed, name)
        return
    expected = reference.merge(base, agents, **settings) | weighed(config, base, agents)
    assert set(written) == set(expected)
    assert all(same_bits(written[name], t.to(dtype)) for name, t in expected.items())


def make_adapter(folder: Path, base: Path, seed: int) -> None:
    import peft

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(model, lora).save_pretrained(folder)


@pytest.mark.parametrize("recipe", OTHERS, ids=lambda recipe: recipe.stem)
def test_another_recipe_merges_stand_ins_of_its_models(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = read(recipe)
    base_path = Path(config["base_model"])
    make_base(base_path)
    save_tokenizer(base_path)
    for seed, model in enumerate(config["models"], start=1):
        path, plus, adapter = model["model"].partition("+")
        if plus:
            make_adapter(Path(adapter), base_path, seed)
        else:
            make_agent(Path(path), base_path, 0.3, seed)
            save_tokenizer(Path(path))
    succeed(run_yaml(recipe.read_text(), tmp_path / "out", "--no-write-model-card"))
    assert set(read_weights(tmp_path / "out")) == set(read_weights(base_path))


@pytest.mark.parametrize("recipe", ["ram_plus", "ram_directions"])
def test_the_same_recipe_twice_gives_the_same_bytes(tmp_path, monkeypatch, recipe):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples" / "yaml" / f"{recipe}.yml").read_text()
    for name in ("first", "second"):
        succeed(run_yaml(text, tmp_path / name))
    files = sorted(path.relative_to(tmp_path / "first") for path in tmp_path.glob("first/*"))
    assert Path("model.safetensors") in files
    assert Path("tokenizer.json") in files
    for file in files:
        first, second = tmp_path / "first" / file, tmp_path / "second" / file
        if file.name == RECORD_NAME:
            records = [
                read_record(path).model_dump(exclude={"seconds"}) for path in (first, second)
            ]
            assert records[0] == records[1]
        elif file.name != "README.md":
            assert first.read_bytes() == second.read_bytes(), file
