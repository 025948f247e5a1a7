"""Code run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OURS = ("-c", "from mergekit_ram.cli import main; main(prog_name='mergekit-ram')")
"""What Python runs for the command ``mergekit-ram``, wherever that is installed."""

PLAN_BOTH_WAYS = """
import sys, yaml
from mergekit import merge_methods
from mergekit.config import MergeConfiguration
from mergekit.architecture import get_architecture_info
from mergekit.io.tasks import LoaderCache
from mergekit.merge import MergePlanner, MergeOptions
from mergekit.scripts.merge_raw_pytorch import RawPyTorchMergeConfig, plan_flat_merge

settings = yaml.safe_load(open(sys.argv[1]))
for name, owner in (("ram", "RamMerge"), ("ram_plus", "RamPlusMerge")):
    method = merge_methods.get(name)
    assert type(method).__name__ == owner, method
    assert type(method).__module__ == "mergekit_ram.methods", method
    options = MergeOptions()
    config = MergeConfiguration.model_validate(settings | {"merge_method": name})
    info = get_architecture_info(config, options)
    planner = MergePlanner(config, info, options, config.base_model.config())
    finalize = planner.plan_to_disk(sys.argv[2])[0]
    raw = {"merge_method": name, "base_model": settings["base_model"] + "/model.safetensors"}
    raw["models"] = [{"model": m["model"] + "/model.safetensors"} for m in settings["models"]]
    raw_config = RawPyTorchMergeConfig.model_validate(raw)
    raw_finalize = plan_flat_merge(raw_config, sys.argv[2], False, False, options)[0]
    for plan in (finalize.tensor_save_tasks, raw_finalize.tensor_save_tasks):
        assert plan
        merges = [save.tensor_task for save in plan]
        assert {type(merge).__name__ for merge in merges} == {"RamMergeTask"}
        assert len({merge.statistics for merge in merges}) == 1
        assert (merges[0].statistics is None) == (name == "ram")
print("planned")
"""


def python(code: str, *arguments: str | Path, **environment: str) -> str:
    """Run code in a fresh interpreter; its standard output, or its errors as a failure."""
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
