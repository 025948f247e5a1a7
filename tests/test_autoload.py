"""The plugin is simply there: every order of imports, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import torch
import yaml
from models import Trio, read_weights
from reference import same_bits
from safetensors.torch import load_file

FIRST_IMPORTS = (
    "torch",
    "transformers",
    "wrapt",
    "mergekit",
    "mergekit.architecture",
    "mergekit.common",
    "mergekit.config",
    "mergekit.graph",
    "mergekit.io.tasks",
    "mergekit.merge",
    "mergekit.merge_methods",
    "mergekit.merge_methods.registry",
    "mergekit.merge_methods.task_adapter",
    "mergekit.options",
    "mergekit.plan",
    "mergekit.scripts.merge_raw_pytorch",
    "mergekit.scripts.multimerge",
    "mergekit.scripts.run_yaml",
    "mergekit.tokenizer",
    "mergekit_ram",
    "mergekit_ram.host",
    "mergekit_ram.kernels.count_and_merge",
    "mergekit_ram.methods",
    "mergekit_ram.parameters",
    "mergekit_ram.plan.tasks",
)

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
    *saves, finalize = planner.plan_to_disk(sys.argv[2])
    raw = {"merge_method": name, "base_model": settings["base_model"] + "/model.safetensors"}
    raw["models"] = [{"model": m["model"] + "/model.safetensors"} for m in settings["models"]]
    raw_config = RawPyTorchMergeConfig.model_validate(raw)
    *raw_saves, finalize = plan_flat_merge(raw_config, sys.argv[2], False, False, options)
    for plan in (saves, raw_saves):
        assert plan
        merges = [save.tensor_task for save in plan]
        assert {type(merge).__name__ for merge in merges} == {"RamMergeTask"}
        assert len({merge.statistics for merge in merges}) == 1
        assert (merges[0].statistics is None) == (name == "ram")
print("planned")
"""


@pytest.fixture(scope="module")
def shared_trio(tmp_path_factory: pytest.TempPathFactory) -> Trio:
    trio = Trio(tmp_path_factory.mktemp("trio"))
    (trio.folder / "recipe.yml").write_text(yaml.safe_dump(trio.config("ram_plus")))
    return trio


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


@pytest.mark.parametrize("first", FIRST_IMPORTS)
def test_both_methods_are_registered_and_planned_whatever_is_imported_first(first, shared_trio):
    code = f"import {first}\n" + PLAN_BOTH_WAYS
    recipe, out = shared_trio.folder / "recipe.yml", shared_trio.folder / "out"
    # Progress bars of the planner go to standard error.
    assert python(code, recipe, out) == "planned"


def test_planners_work_when_only_their_own_module_is_imported(shared_trio):
    for module in ("mergekit.plan", "mergekit.scripts.merge_raw_pytorch"):
        code = f"import {module} as m\nprint(type(m.merge_methods.get('ram_plus')).__name__)"
        assert python(code) == "RamPlusMerge"


def console_script(name: str) -> str:
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert path is not None, f"{name} is not installed"
    return path


def test_the_command_mergekit_yaml_knows_us(shared_trio, tmp_path):
    recipe = str(shared_trio.folder / "recipe.yml")
    command = [console_script("mergekit-yaml"), recipe, str(tmp_path), "--no-copy-tokenizer"]
    subprocess.run(command, check=True)
    expected = reference.merge(shared_trio.base, shared_trio.agents, r=0.1)
    written = read_weights(tmp_path)
    assert all(same_bits(written[n], t.bfloat16()) for n, t in expected.items())


def test_the_command_mergekit_multi_knows_us(shared_trio, tmp_path):
    first = yaml.safe_load((shared_trio.folder / "recipe.yml").read_text())
    final = {**first, "parameters": {"r": 0.5}, "models": [{"model": "step"}, first["models"][0]]}
    recipe = tmp_path / "multi.yml"
    recipe.write_text(yaml.safe_dump_all([{"name": "step", **first}, final]))
    options = ["--intermediate-dir", str(tmp_path / "steps"), "--out-path", str(tmp_path / "out")]
    command = [console_script("mergekit-multi"), str(recipe), *options, "--no-copy-tokenizer"]
    subprocess.run(command, check=True)
    step = reference.merge(shared_trio.base, shared_trio.agents, r=0.1)
    step = {name: tensor.bfloat16() for name, tensor in step.items()}
    agent = next(iter(shared_trio.agents.values()))
    expected = reference.merge(shared_trio.base, {"step": step, "agent": agent}, r=0.5)
    written = read_weights(tmp_path / "out")
    assert all(same_bits(written[n], t.bfloat16()) for n, t in expected.items())


def test_the_command_mergekit_pytorch_knows_us(shared_trio, tmp_path):
    base, *agents = (f"{p}/model.safetensors" for p in (shared_trio.base_path, *shared_trio.agents))
    recipe = tmp_path / "raw.yml"
    config = {"merge_method": "ram_plus", "base_model": base, "out_dtype": "float32"}
    recipe.write_text(yaml.safe_dump({**config, "models": [{"model": a} for a in agents]}))
    command = [console_script("mergekit-pytorch"), str(recipe), str(tmp_path / "out")]
    subprocess.run(command, check=True)
    expected = reference.merge(shared_trio.base, shared_trio.agents, r=0.1)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(same_bits(written[n], t) for n, t in expected.items())


def test_import_torch_brings_in_neither_mergekit_nor_our_arithmetic():
    code = (
        "import torch, sys\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in ('mergekit', 'transformers')]\n"
        "ours = sorted(m for m in sys.modules if m.startswith('mergekit_ram'))\n"
        "print(heavy, ours)"
    )
    assert python(code) == "[] ['mergekit_ram', 'mergekit_ram.autoload']"


def test_the_hook_imports_the_standard_library_and_wrapt_alone():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import mergekit_ram\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    assert python(code) == "['mergekit_ram', 'wrapt']"


OWNER = (
    "from mergekit import merge_methods; names = [m.spec.name for m in "
    "merge_methods.registered_methods()]\n"
    "print(type(merge_methods.get('ram')).__module__, 'ram_plus' in names)"
)
OURS = "mergekit_ram.methods True"
THEIRS = "mergekit.merge_methods.base False"


def test_the_environment_switches_everything_off():
    for value, owner in (("1", THEIRS), ("true", THEIRS), ("0", OURS), ("", OURS)):
        assert python(OWNER, MERGEKIT_RAM_DISABLE=value) == owner
    code = "import mergekit_ram; print(mergekit_ram.install())"
    assert python(code, MERGEKIT_RAM_DISABLE="1") == "False"
    assert python("import mergekit_ram\n" + OWNER, MERGEKIT_RAM_DISABLE="1") == THEIRS


@pytest.mark.parametrize(
    "code",
    [
        "import mergekit_ram\n",
        "import mergekit.merge\nimport mergekit_ram\n",
        "import mergekit.merge_methods\nfrom mergekit_ram import RamMerge\n",
    ],
)
def test_importing_the_package_switches_on_where_torchs_autoload_is_off(code, shared_trio):
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert python(OWNER, **off) == THEIRS
    assert python(code + OWNER, **off) == OURS
    recipe, out = shared_trio.folder / "recipe.yml", shared_trio.folder / "out"
    assert python(code + PLAN_BOTH_WAYS, recipe, out, **off) == "planned"


def test_installing_twice_is_harmless_and_can_be_undone():
    code = """
import mergekit.plan, mergekit.scripts.merge_raw_pytorch as raw
from mergekit import merge_methods
from mergekit.merge_methods import registry
import mergekit_ram

mergekit_ram.uninstall()
before = dict(registry._METHODS), registry.get, merge_methods.get
plan, finalize = mergekit.plan.MergePlanner._plan, raw.FinalizeModel
assert 'ram_plus' not in before[0]
for _ in range(3):
    assert mergekit_ram.install() and mergekit_ram.install()
    ours = merge_methods.get('ram_plus')
    assert merge_methods.get('ram_plus') is ours
    assert mergekit.plan.MergePlanner._plan is not plan
    assert raw.FinalizeModel is not finalize
    assert vars(mergekit.plan.MergePlanner)['_plan'].__wrapped__ is plan
    mergekit_ram.uninstall()
    mergekit_ram.uninstall()
    assert (dict(registry._METHODS), registry.get, merge_methods.get) == before
    assert mergekit.plan.MergePlanner._plan is plan
    assert raw.FinalizeModel is finalize
print('undone')
"""
    assert python(code) == "undone"


WITH_VERSION = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: {version!r} if name == 'mergekit' else real(name)
"""
REFUSAL = """
from mergekit import merge_methods
assert merge_methods.get('linear').spec.name == 'linear'
for name in ('ram', 'ram_plus'):
    try:
        merge_methods.get(name)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("version", ["0.1.4", "0.2.0", "1.0"])
def test_another_mergekit_is_refused_with_both_versions_and_its_own_ram_is_not_used(version):
    lines = python(WITH_VERSION.format(version=version) + REFUSAL).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line == (
            "HostError mergekit-ram 0.1.0 works with mergekit >= 0.1.5, < 0.2; installed is "
            f"mergekit {version}. Install a matching pair of versions."
        )


def test_a_mergekit_that_looks_different_inside_is_refused():
    code = """
from mergekit.merge_methods import registry
table = registry._METHODS
del registry._METHODS
registry._METHODS = tuple(table.values())
registry.get.__wrapped__.__code__ = (lambda name: {m.spec.name: m for m in _METHODS}[name]).__code__
"""
    lines = python(code + REFUSAL).splitlines()
    assert (
        lines
        == [
            "HostError mergekit-ram 0.1.0 does not find the table registry._METHODS in mergekit "
            "0.1.5 as it knows it, and changes nothing. Install a matching pair of versions."
        ]
        * 2
    )


def test_a_changed_planner_is_refused_when_a_merge_is_planned():
    code = """
import mergekit.plan
del mergekit.plan.MergePlanner._plan
from mergekit import merge_methods
try:
    merge_methods.get('ram_plus')
except Exception as error:
    print(error)
"""
    assert python(code).startswith(
        "mergekit-ram 0.1.0 does not find the method MergePlanner._plan in mergekit 0.1.5"
    )


def test_a_broken_hook_does_not_break_torch():
    code = "import sys; sys.modules['wrapt'] = None\nimport torch\nprint(torch.ones(1).item())"
    assert python(code) == "1.0"


def test_plans_alive_at_once_do_not_share_counts(shared_trio):
    from mergekit.architecture import get_architecture_info
    from mergekit.config import MergeConfiguration
    from mergekit.graph import Executor
    from mergekit.options import MergeOptions
    from mergekit.plan import MergePlanner

    models = list(shared_trio.agents)
    plans = []
    for chosen in (models, models[:2], models[1:]):
        settings = shared_trio.config("ram_plus", models=[{"model": m} for m in chosen])
        config = MergeConfiguration.model_validate(settings)
        options = MergeOptions(quiet=True)
        info = get_architecture_info(config, options)
        planner = MergePlanner(config, info, options, config.base_model.config())
        plans.append((chosen, planner.plan_in_memory()))
    together = Executor([task for _, plan in plans for task in plan])
    values = {id(task): value for task, value in together.run(quiet=True)}
    for chosen, plan in plans:
        agents = {model: shared_trio.agents[model] for model in chosen}
        expected = reference.merge(shared_trio.base, agents, r=0.1)
        for task in plan:
            assert same_bits(values[id(task)], expected[task.weight_info.name].bfloat16())
        assert len(plan) == len(expected)
    assert torch.is_tensor(next(iter(values.values())))
