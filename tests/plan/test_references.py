"""How models are named: folders with a +, one model twice, adapters in place of models."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from families import Family, assert_weights
from models import Weights, forget_loaded_models, read_weights
from transformers import AutoModelForCausalLM


def adapter(family: Family, name: str, **settings: object) -> Path:
    import peft

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(family.path("base"), dtype=torch.bfloat16)
    given = {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False} | settings
    peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **given)).save_pretrained(
        family.path(name)
    )
    return family.path(name)


def with_plus(family: Family) -> tuple[Path, dict[str, Weights]]:
    folder = family.path("grpo+kl")
    family.path("tool").rename(folder)
    return folder, {"coder": family.agents["coder"], "grpo+kl": family.agents["tool"]}


def test_a_folder_with_a_plus_is_merged_and_inspected(tmp_path):
    family = Family(tmp_path)
    folder, agents = with_plus(family)
    coder = {"model": str(family.path("coder"))}
    models = [coder, {"model": {"model": {"path": str(folder)}}}]
    assert_weights(family.merge(models=models), family.expected(agents=agents))
    result = family.inspect(models=models)
    assert result.exit_code == 0, result.output
    looked, merged = json.loads(result.stdout), family.record()
    assert [a["model"] for a in looked["agents"]] == [str(family.path("coder")), str(folder)]
    for one, other in zip(looked["agents"], merged["agents"], strict=True):
        assert (one["active"], one["rescale"]) == (other["active"], other["rescale"])


@pytest.mark.parametrize("there_is_a_base", [False, True])
def test_the_short_form_explains_the_plus(tmp_path, there_is_a_base):
    family = Family(tmp_path)
    folder, _ = with_plus(family)
    if there_is_a_base:
        shutil.copytree(family.path("coder"), family.path("grpo"))
    line = family.refusal(models=[{"model": str(folder)}])
    assert line.startswith(f"Error: model {folder}: there is no ")
    assert line.endswith(
        "A + separates a base from its adapter; a folder with a + in its name is written as "
        f"`model: {{model: {{path: {folder}}}}}`."
    )


def test_two_models_of_one_name_are_refused(tmp_path):
    family = Family(tmp_path)
    folder = adapter(family, "kl")
    plus = Path(f"{family.path('base')}+{folder}")
    shutil.copytree(family.path("tool"), plus)
    models = [{"model": str(plus)}, {"model": {"model": {"path": str(plus)}}}]
    line = family.refusal("--lora-merge-cache", str(tmp_path / "cache"), models=models)
    assert line.startswith(f"Error: two models are called {plus}:")


@pytest.mark.parametrize("place", ["base", "agent", "adapter"])
def test_a_home_folder_is_not_looked_for_at_the_hub(tmp_path, place):
    family = Family(tmp_path)
    model, kind = "~/it", "folder"
    if place == "adapter":
        model, kind = f"{family.path('base')}+~/it", "adapter folder"
    changes = {"base_model": model} if place == "base" else {"models": [{"model": model}]}
    assert family.refusal(**changes) == (
        f"Error: model {model}: there is no {kind} ~/it. Correct the path; a model of the hub is "
        "written as owner/name."
    )


# One model twice


def test_a_link_to_a_folder_is_the_same_model(tmp_path):
    family = Family(tmp_path)
    family.path("linked").symlink_to(family.path("tool"))
    models = [{"model": str(family.path(name))} for name in ("tool", "linked")]
    assert "are read from the same files" in family.refusal(models=models)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_to_the_same_files_are_the_same_model(tmp_path, link):
    family = Family(tmp_path)
    family.path("other").mkdir()
    for file in family.path("tool").iterdir():
        link(file, family.path("other") / file.name)
    models = [{"model": str(family.path(name))} for name in ("tool", "other")]
    assert family.refusal(models=models) == (
        f"Error: the models {family.path('other')} and {family.path('tool')} are read from the "
        "same files; a merge would count its updates twice. Name every model once, and in one way."
    )


def cached(family: Family, name: str, repository: str) -> Path:
    """Put a model into a cache of the hub, as a download does."""
    root = family.folder / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / ("0" * 39 + "1")
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    for file in family.path(name).iterdir():
        shutil.copy(file, root / "blobs" / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(snapshot.name)
    return snapshot


def test_two_places_in_the_cache_are_the_same_model(tmp_path):
    family = Family(tmp_path)
    first = cached(family, "tool", "someone/tool")
    second = first.parent / ("0" * 39 + "2")
    shutil.copytree(first, second, symlinks=True)
    line = family.refusal(models=[{"model": str(first)}, {"model": str(second)}])
    assert "are read from the same files" in line


@pytest.mark.parametrize("second", ["someone/tool@main", "someone/tool@commit", "folder"])
def test_a_name_of_the_hub_and_another_one_for_it(tmp_path, monkeypatch, second):
    family = Family(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda *_, **__: ["model.safetensors"])
    snapshot = cached(family, "tool", "someone/tool")
    other = second.replace("commit", snapshot.name).replace("folder", str(snapshot))
    line = family.refusal(
        "--transformers-cache",
        str(tmp_path / "hub"),
        models=[{"model": "someone/tool"}, {"model": other}],
    )
    first, last = sorted(["someone/tool", other])
    if other == str(snapshot):
        first, last = other, "someone/tool"
    assert line == (
        f"Error: the models {first} and {last} are read from the same files; a merge would count "
        "its updates twice. Name every model once, and in one way."
    )


# Adapters


def test_an_adapter_in_place_of_a_model_is_told_as_such(tmp_path):
    family = Family(tmp_path)
    folder = adapter(family, "adapter")
    assert family.refusal(models=[{"model": str(folder)}]) == (
        f"Error: model {folder}: the folder {folder} holds an adapter (adapter_config.json) and no "
        f"whole model. Write base and adapter together: `model: {family.path('base')}+{folder}`, "
        "with the base that it was trained on."
    )


def test_a_model_in_place_of_an_adapter_is_told_as_such(tmp_path):
    family = Family(tmp_path)
    model = f"{family.path('base')}+{family.path('tool')}"
    line = family.refusal("--lora-merge-cache", str(tmp_path / "c"), models=[{"model": model}])
    assert line == (
        f"Error: model {model}: the folder {family.path('tool')} holds no adapter: it has no "
        "adapter_config.json; it looks like a whole model, which is given without a base and a +."
    )


def test_an_adapter_without_a_cache_is_merged_in_a_folder_that_goes_again(tmp_path, caplog):
    family = Family(tmp_path)
    model = f"{family.path('base')}+{adapter(family, 'adapter')}"
    models = [{"model": str(family.path("coder"))}, {"model": model}]
    before = {path.name for path in tmp_path.iterdir()}
    written = family.merge(models=models)
    (line,) = [r.message for r in caplog.records if "adapters are merged" in r.message]
    assert line.startswith(f"adapters are merged into their bases in {tmp_path}/.mergekit-ram-")
    assert line.endswith("--lora-merge-cache FOLDER keeps them for other merges")
    assert {path.name for path in tmp_path.iterdir()} == {*before, "out", "out.yml"}
    cached = family.merge("--lora-merge-cache", str(tmp_path / "cache"), models=models)
    assert_weights(written, cached)
    looked = family.inspect(models=models)
    assert looked.exit_code == 0, looked.output
    assert [a["active"] for a in json.loads(looked.stdout)["agents"]] == [
        a["active"] for a in family.record()["agents"]
    ]


@pytest.mark.parametrize("architecture", ["Mamba", "RecurrentGemma"])
def test_an_adapter_that_does_not_fit_leaves_nothing_in_the_cache(tmp_path, architecture):
    family = Family(tmp_path)
    folder = adapter(family, "adapter", target_modules=["q_proj", "o_proj"])
    other = Family(tmp_path / "other", architecture)
    cache = tmp_path / "cache"
    model = f"{other.path('base')}+{folder}"
    changes = {
        "base_model": str(other.path("base")),
        "models": [{"model": str(other.path("coder"))}, {"model": model}],
    }
    line = family.refusal("--lora-merge-cache", str(cache), **changes)
    assert line.startswith(f"Error: model {model}: the adapter {folder} ")
    assert line.endswith(
        "Give the base that the adapter was trained on, or merge it yourself (merge_and_unload)."
    )
    assert list(cache.iterdir()) == []


def test_an_adapter_whose_names_do_not_fit_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    family = Family(tmp_path)
    folder = adapter(family, "adapter")
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {name.replace("base_model.model.", "", 1): t for name, t in weights.items()},
        folder / "adapter_model.safetensors",
    )
    cache = tmp_path / "cache"
    model = f"{family.path('base')}+{folder}"
    line = family.refusal("--lora-merge-cache", str(cache), models=[{"model": model}])
    assert line.startswith(f"Error: model {model}: the adapter {folder} does not fit: it has no")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("change", ["nothing", "a folder", "a note", "a dangling link", "a time"])
def test_what_changes_no_weight_leaves_a_merged_adapter_as_it_is(tmp_path, change):
    assert not merged_anew(tmp_path, change)


@pytest.mark.parametrize("change", ["weights of the base", "the adapter's settings"])
def test_an_adapter_is_merged_anew_where_it_or_its_base_is_another(tmp_path, change):
    assert merged_anew(tmp_path, change)


def merged_anew(tmp_path: Path, change: str) -> bool:
    """Whether a second merge makes another model beside that which the first one left."""
    family = Family(tmp_path)
    base, folder = family.path("base"), adapter(family, "adapter")
    cache = tmp_path / "cache"
    models = [{"model": str(family.path("coder"))}, {"model": f"{base}+{folder}"}]
    written = family.merge("--lora-merge-cache", str(cache), models=models)
    (merged,) = cache.iterdir()
    lora = read_weights(merged)
    agents = {"coder": family.agents["coder"], "lora": {n: lora[n] for n in family.base}}
    assert_weights(written, family.expected(agents=agents))
    before = merged.stat().st_ino
    if change == "a folder":
        (base / "notes").mkdir()
    elif change == "a note":
        (base / "README.md").write_text("read me")
    elif change == "a dangling link":
        (base / ".#config.json").symlink_to("nowhere")
    elif change == "a time":
        os.utime(base / "config.json", (0, 0))
    elif change == "weights of the base":
        family.write("base", {name: tensor * 2 for name, tensor in family.base.items()})
    elif change == "the adapter's settings":
        settings = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 1}))
    forget_loaded_models()
    family.merge("--lora-merge-cache", str(cache), models=models)
    assert merged.stat().st_ino == before
    return len(list(cache.iterdir())) > 1
