"""How the counting pass sits in mergekit's graph."""

from __future__ import annotations

import weakref
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import yaml
from click.testing import CliRunner
from mergekit.architecture import get_architecture_info
from mergekit.config import MergeConfiguration
from mergekit.graph import Executor, Task
from mergekit.io.tasks import LoadTensor
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.multigpu_executor import MultiGPUExecutor
from mergekit.options import MergeOptions
from mergekit.plan import MergePlanner
from mergekit.scripts.merge_raw_pytorch import main as merge_raw
from models import Trio, forget_loaded_models
from safetensors.torch import save_file

from mergekit_ram.errors import PlanError
from mergekit_ram.plan.tasks import RamMergeTask


def plan(trio: Trio, out: Path, method: str = "ram_plus", **options) -> list[Task]:
    forget_loaded_models()
    config = MergeConfiguration.model_validate(trio.config(method))
    settings = MergeOptions(quiet=True, **options)
    info = get_architecture_info(config, settings)
    planner = MergePlanner(config, info, settings, config.base_model.config())
    return planner.plan_to_disk(str(out))


def test_counting_is_scheduled_before_anything_is_loaded_or_written(trio: Trio, tmp_path):
    executor = Executor(plan(trio, tmp_path / "out"))
    names = [type(handle.task()).__name__ for handle in executor.schedule.tasks]
    assert names[0] == "CountOverlaps"
    assert names.count("CountOverlaps") == 1


def test_ram_alone_needs_no_counting(trio: Trio, tmp_path):
    executor = Executor(plan(trio, tmp_path / "out", "ram"))
    names = {type(handle.task()).__name__ for handle in executor.schedule.tasks}
    assert "CountOverlaps" not in names
    assert "RamMergeTask" in names


def test_the_counting_pass_holds_one_tensor_group_at_a_time(trio: Trio, tmp_path):
    tasks = plan(trio, tmp_path / "out")
    (counting,) = {save.tensor_task.statistics for save in tasks[0].tensor_save_tasks}
    alive: dict[int, int] = {}
    largest = 0
    load = LoadTensor.execute

    def watched(self):
        nonlocal largest
        tensor = load(self).clone()
        key = id(tensor)
        alive[key] = tensor.numel()
        largest = max(largest, sum(alive.values()))
        weakref.finalize(tensor, alive.pop, key)
        return tensor

    with patch.object(LoadTensor, "execute", watched):
        statistics = counting.execute()
    assert not alive
    assert largest == 4 * max(counts.numel for counts in statistics.tensors)


def test_every_tensor_is_loaded_by_mergekits_own_tasks_once_per_pass(trio: Trio, tmp_path):
    loads = []
    load = LoadTensor.execute

    def watched(self):
        loads.append((str(self.model), self.tensor))
        return load(self)

    with patch.object(LoadTensor, "execute", watched):
        for _ in Executor(plan(trio, tmp_path / "out")).run(quiet=True):
            pass
    assert len(loads) == 2 * 4 * len(trio.base)
    assert all(loads.count(pair) == 2 for pair in set(loads))


def test_the_multi_gpu_executor_counts_first_and_keeps_the_tensors_separate(trio, tmp_path):
    cuda = torch.device("cuda")
    with (
        patch.object(torch.accelerator, "current_accelerator", return_value=cuda),
        patch.object(torch.accelerator, "is_available", return_value=True),
    ):
        tasks = plan(trio, tmp_path / "out", multi_gpu=True)
        executor = MultiGPUExecutor(tasks, num_gpus=2)
    leading = [type(handle.task()).__name__ for handle in executor.leading_main_handles]
    assert leading == ["CountOverlaps", "MergedTensorWriter"]
    merges = [
        {handle._index for handle in handles if isinstance(handle.task(), RamMergeTask)}
        for handles in executor.gpu_assignments.values()
    ]
    # As many islands as tensors, so that two GPUs share them evenly.
    assert sorted(len(found) for found in merges) == [len(trio.base) // 2] * 2
    (counting,) = (h.task() for h in executor.leading_main_handles if "Count" in repr(h))
    assert torch.device(counting.device).type == "cuda"


def test_counting_happens_on_the_device_that_the_merge_is_computed_on(trio: Trio, tmp_path):
    tasks = plan(trio, tmp_path / "out", device="meta")
    (counting,) = {save.tensor_task.statistics for save in tasks[0].tensor_save_tasks}
    assert counting.device == "meta"
    with pytest.raises(Exception, match="Meta tensors"):
        counting.execute()


def test_planning_time_grows_with_the_number_of_tensors_not_its_square(trio: Trio, tmp_path):
    tasks = plan(trio, tmp_path / "out")
    hashes = 0
    original = ExecuteMergeMethodTask.__hash__

    def counting_hash(self):
        nonlocal hashes
        hashes += 1
        return original(self)

    with patch.object(RamMergeTask, "__hash__", counting_hash):
        executor = Executor(tasks)
    assert len(executor.schedule.tasks) > len(trio.base)
    # A save task hashes its merge, and the final task hashes all save tasks once.
    assert hashes <= 12 * len(trio.base)


def test_a_merge_task_outside_of_a_plan_is_refused(trio: Trio, tmp_path):
    task = plan(trio, tmp_path / "out")[0].tensor_save_tasks[0].tensor_task
    fields = {name: getattr(task, name) for name in ExecuteMergeMethodTask.model_fields}
    lone = ExecuteMergeMethodTask(**fields)
    with pytest.raises(PlanError, match="is to be merged alone, without the counts"):
        list(Executor([lone]).run(quiet=True))


def test_a_tensor_that_the_base_lacks_is_refused_by_name(tmp_path):
    weights = {"base": {"w": torch.zeros(3)}, "agent": {"w": torch.ones(3), "v": torch.ones(2)}}
    for name, tensors in weights.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    config = {
        "merge_method": "ram_plus",
        "base_model": str(tmp_path / "base.safetensors"),
        "models": [{"model": str(tmp_path / "agent.safetensors")}],
    }
    recipe = tmp_path / "raw.yml"
    recipe.write_text(yaml.safe_dump(config))
    out = tmp_path / "out"
    result = CliRunner().invoke(merge_raw, [str(recipe), str(out), "--tensor-union"])
    assert result.exit_code == 1
    assert (
        f"Error: tensor v: the base {tmp_path}/base.safetensors lacks it, while "
        f"{tmp_path}/agent.safetensors has it"
    ) in result.output
    assert not out.exists()
