"""``ram_directions`` as mergekit sees it: parameters, refusals, record and model card."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest.mock import patch

import directions_reference as reference
import pytest
import torch
from mergekit import merge_methods
from mergekit.architecture import get_architecture_info
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import LoadTensor
from mergekit.merge_methods import merge_state_dicts, merge_tensors
from mergekit.multigpu_executor import MultiGPUExecutor
from mergekit.options import MergeOptions
from mergekit.plan import MergePlanner
from models import Trio, Weights, forget_loaded_models, read_weights, run_yaml, write_weights
from reference import same_bits

from mergekit_ram import RamDirectionsMerge
from mergekit_ram.errors import InputError, ParameterError
from mergekit_ram.plan.tasks import RamMergeTask
from mergekit_ram.record.check import read_record
from mergekit_ram.record.schema import RECORD_NAME

METHOD = "ram_directions"
KEY = "model.layers.1.mlp.up_proj.weight"
RANGES = {
    "epsilon": "a finite number ≥ 0",
    "ridge": "a finite number > 0",
    "scale": "a finite number ≥ 0",
    "weight": "a finite number",
}


def test_the_registry_holds_the_method_with_its_parameters():
    method = merge_methods.get(METHOD)
    assert isinstance(method, RamDirectionsMerge)
    defaults = {parameter.name: parameter.default for parameter in method.spec.parameters}
    assert defaults == {"epsilon": 1e-5, "ridge": 0.3, "scale": 1.0, "weight": 1.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in RANGES for value in ("much", float("nan"), float("inf"), True)),
        *((name, -0.5) for name in RANGES if name != "weight"),
        ("ridge", 0),
        ("ridge", 0.0),
        ("ridge", None),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    tensors = [torch.zeros(4, 3), torch.ones(4, 3)]
    with pytest.raises(ParameterError) as caught:
        merge_tensors(tensors, METHOD, base_index=0, parameters={name: value})
    assert f"parameter '{name}' must be {RANGES[name]}; got {value!r}" in str(caught.value)


def test_a_ridge_of_zero_is_refused_in_a_yaml_file(trio: Trio):
    result = run_yaml(trio.config(METHOD, parameters={"ridge": 0}), trio.folder / "out")
    assert result.exit_code != 0
    assert "parameter 'ridge' must be a finite number > 0; got 0" in result.output
    assert not (trio.folder / "out").exists()


def test_a_ridge_below_all_rounding_is_refused_with_the_tensor(trio: Trio):
    result = run_yaml(trio.config(METHOD, parameters={"ridge": 1e-30}), trio.folder / "out")
    assert result.exit_code != 0
    assert "with `ridge: 1e-30` rounding is larger than the ridge, even in float64" in result.output
    assert "Set a larger one; 0.05 to 1 are usual." in result.output


def change(trio: Trio, model: str, values: Weights) -> None:
    write_weights(Path(model), read_weights(Path(model)) | values, trio.folder / "base")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_numbers_that_are_none_are_refused_with_model_and_tensor(trio: Trio, value, weight):
    model = list(trio.agents)[1]
    broken = trio.agents[model][KEY].clone()
    broken[3, 5] = value
    change(trio, model, {KEY: broken})
    config = trio.config(METHOD)
    config["models"][1]["parameters"] = {"weight": weight}
    result = run_yaml(config, trio.folder / "out")
    assert result.exit_code != 0
    assert f"model {model}, tensor {KEY}: holds {value}" in result.output
    assert "Repair or re-download this checkpoint." in result.output


def test_a_result_that_overflows_is_refused_with_the_tensor(trio: Trio):
    changes = {"parameters": {"scale": 1e9}, "out_dtype": "float16"}
    result = run_yaml(trio.config(METHOD, **changes), trio.folder / "out")
    assert result.exit_code != 0
    assert "does not fit torch.float16" in result.output
    assert "Set a wider `out_dtype:`, or a smaller `scale`." in result.output


def test_the_same_checks_of_files_are_made(trio: Trio):
    model = next(iter(trio.agents))
    change(trio, model, {KEY: trio.agents[model][KEY][:, :-1].contiguous()})
    result = run_yaml(trio.config(METHOD), trio.folder / "out")
    assert result.exit_code != 0
    assert f"tensor {KEY}: shape [48, 31]" in result.output
    assert not (trio.folder / "out").exists()


def test_models_and_base_are_required_as_by_ram():
    tensors = [torch.zeros(4, 3), torch.ones(4, 3)]
    with pytest.raises(InputError, match=r"ram_directions: .* needs `base_model:`"):
        merge_tensors(tensors, METHOD)
    with pytest.raises(InputError, match="ram_directions: "):
        merge_tensors(tensors[:1], METHOD, base_index=0)


def test_parameters_of_the_other_methods_are_warned_about(trio: Trio, caplog):
    with caplog.at_level(logging.WARNING, "mergekit_ram"):
        trio.merge(METHOD, parameters={"alpha": 1.0, "rigde": 0.1})
    assert "parameter 'alpha' has no effect: ram_directions does not know it" in caplog.text
    assert "parameter 'rigde' has no effect" in caplog.text
    assert "did you mean 'ridge'?" in caplog.text


def test_tensors_that_nobody_changed_are_the_bases_bit_for_bit(trio: Trio):
    for model in trio.agents:
        change(trio, model, {KEY: trio.base[KEY]})
    assert same_bits(trio.merge(METHOD)[KEY], trio.base[KEY])
    everywhere = trio.merge(METHOD, parameters={"epsilon": 100.0})
    assert all(same_bits(everywhere[name], tensor) for name, tensor in trio.base.items())


def test_one_agent_alone_is_that_agent(trio: Trio):
    models = trio.config(METHOD)["models"][2:]
    (agent,) = (trio.agents[model["model"]] for model in models)
    written = trio.merge(METHOD, models=models, parameters={"epsilon": 0})
    assert all(same_bits(written[name], tensor) for name, tensor in agent.items())


def test_a_negative_weight_takes_a_task_vector_away(trio: Trio):
    models = {"base": trio.base, **trio.agents}
    weight = dict(zip(trio.agents, (1.0, -1.0, 0.0), strict=True))
    merged = merge_state_dicts(models, METHOD, base="base", parameters={"weight": weight})
    for name, tensor in trio.base.items():
        held = {model: weights[name] for model, weights in trio.agents.items()}
        expected = reference.merge_tensor(tensor, held, weight=weight)
        reference.assert_close(merged[name], expected, tensor, list(held.values()), name)


def test_the_record_counts_what_the_agents_changed(trio: Trio):
    trio.merge(METHOD, parameters={"ridge": 0.2})
    record = read_record(trio.folder / "merged" / RECORD_NAME)
    trio.merge("ram")
    by_ram = read_record(trio.folder / "merged" / RECORD_NAME)
    assert record.merge_method == METHOD
    assert record.settings.ridge == 0.2
    assert record.settings.overlap_power is None
    assert by_ram.settings.ridge is None
    assert record.statistics() == by_ram.statistics()
    assert [agent.rescale for agent in record.agents] == [1.0] * 3


def test_the_model_card_names_the_method_and_its_ridge(trio: Trio):
    run_yaml(trio.config(METHOD, parameters={"ridge": 0.2}), trio.folder / "merged")
    card = (trio.folder / "merged" / "README.md").read_text()
    assert "Merged by `ram_directions` of mergekit-ram" in card
    assert "with ε = 1e-05, " in card
    assert "ridge = 0.2." in card


def plan(trio: Trio, **options) -> list:
    forget_loaded_models()
    config = MergeConfiguration.model_validate(trio.config(METHOD))
    settings = MergeOptions(quiet=True, **options)
    info = get_architecture_info(config, settings)
    planner = MergePlanner(config, info, settings, config.base_model.config())
    return planner.plan_to_disk(str(trio.folder / "out"))


def test_every_tensor_is_loaded_once(trio: Trio):
    loads = []
    load = LoadTensor.execute

    def watched(self):
        loads.append((str(self.model), self.tensor))
        return load(self)

    with patch.object(LoadTensor, "execute", watched):
        trio.merge(METHOD)
    assert len(loads) == len(set(loads)) == 4 * len(trio.base)


def test_the_multi_gpu_executor_shares_the_tensors_evenly(trio: Trio):
    cuda = torch.device("cuda")
    with (
        patch.object(torch.accelerator, "current_accelerator", return_value=cuda),
        patch.object(torch.accelerator, "is_available", return_value=True),
    ):
        executor = MultiGPUExecutor(plan(trio, multi_gpu=True), num_gpus=2)
    merges = [
        {handle._index for handle in handles if isinstance(handle.task(), RamMergeTask)}
        for handles in executor.gpu_assignments.values()
    ]
    assert sorted(len(found) for found in merges) == [len(trio.base) // 2] * 2
