"""Small tensors are looked at together, and nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from models import Trio, write_weights

from mergekit_ram import OverlapRecord, inspect
from mergekit_ram.errors import InputError
from mergekit_ram.inspection import batches

CHANGES: dict[str, dict[str, Any]] = {
    "one recipe": {},
    "of weights by layer": {"weight": [{"filter": "mlp", "value": 0.5}, {"value": 1.0}]},
    "without an agent here and there": {
        "weight": [{"filter": "layernorm", "value": 0.0}, {"value": 1.0}]
    },
}


def recipe(trio: Trio, folder: Path, of_agent: dict[str, Any] | None = None, **shared: Any) -> Path:
    config = trio.config("ram_plus")
    config["models"][0].setdefault("parameters", {}).update(of_agent or {})
    config.setdefault("parameters", {}).update(shared)
    file = folder / "recipe.yml"
    file.write_text(yaml.safe_dump(config))
    return file


def numbers(node: Any) -> Any:
    if isinstance(node, dict):
        return [numbers(value) for key, value in sorted(node.items()) if key != "seconds"]
    if isinstance(node, list | tuple):
        return [numbers(value) for value in node]
    return pytest.approx(node, rel=1e-9) if isinstance(node, float) else node


def alone(monkeypatch: pytest.MonkeyPatch, file: Path, **options: Any) -> OverlapRecord:
    with monkeypatch.context() as patch:
        patch.setattr(batches, "TOGETHER", 0)
        return inspect(file, **options)


@pytest.mark.parametrize("of_agent", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("sample", [None, 0.3])
def test_every_figure_is_that_of_tensors_looked_at_one_by_one(
    trio: Trio, tmp_path, monkeypatch, sample, of_agent
):
    file = recipe(trio, tmp_path, of_agent, r=[{"filter": "q_proj", "value": 0.3}, {"value": 0.1}])
    options = {"sample": sample, "epsilons": (1e-3,)}
    assert numbers(inspect(file, **options).model_dump()) == numbers(
        alone(monkeypatch, file, **options).model_dump()
    )


def test_small_tensors_share_a_call_and_large_ones_do_not(trio: Trio, tmp_path, monkeypatch):
    seen: list[int] = []
    observe = batches.energies.observe
    monkeypatch.setattr(
        batches.energies,
        "observe",
        lambda *args, **named: (seen.append(args[1].numel()), observe(*args, **named))[1],
    )
    largest = max(tensor.numel() for tensor in trio.base.values())
    monkeypatch.setattr(batches, "TOGETHER", largest - 1)
    inspect(recipe(trio, tmp_path), realised=False)
    assert sum(seen) == sum(tensor.numel() for tensor in trio.base.values())
    assert len(seen) < len(trio.base) / 2
    assert seen.count(largest) == sum(t.numel() == largest for t in trio.base.values())
    assert max(seen) == largest


@pytest.mark.parametrize("sample", [None, 0.99])
def test_a_bad_number_in_one_of_them_is_told_by_its_name(trio: Trio, tmp_path, sample):
    name = "model.layers.1.self_attn.k_proj.bias"
    folder = Path(trio.config("ram_plus")["models"][1]["model"])
    weights = dict(trio.agents[str(folder)])
    weights[name] = torch.full_like(weights[name], float("nan"))
    write_weights(folder, weights, Path(trio.config("ram_plus")["base_model"]))
    with pytest.raises(InputError, match=f"model .*{folder.name}, tensor {name}: holds nan"):
        inspect(recipe(trio, tmp_path), sample=sample)


def test_a_result_that_the_output_cannot_hold_is_told_by_its_name(trio: Trio, tmp_path):
    config = trio.config("ram_plus")
    name = "model.layers.0.self_attn.k_proj.bias"
    base = {n: t.clone() for n, t in trio.base.items()}
    base[name] = torch.full_like(base[name], 65500.0)
    write_weights(Path(config["base_model"]), base, Path(config["base_model"]))
    for model in config["models"]:
        folder = Path(model["model"])
        write_weights(folder, trio.agents[str(folder)] | {name: base[name] + 512.0}, folder)
    file = tmp_path / "recipe.yml"
    config |= {"parameters": {"scale": 2.0}, "out_dtype": "float16"}
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match=f"tensor {name}: .*float16"):
        inspect(file)
