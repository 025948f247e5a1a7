"""The plugin is there whatever a process imports first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import yaml
from forks import Done, Job, run_all
from models import Trio, read_weights
from processes import PLAN_BOTH_WAYS, python
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
    "mergekit_ram.kernels.ram",
    "mergekit_ram.methods",
    "mergekit_ram.plan.tasks",
)


@pytest.fixture(scope="module")
def planned(shared_trio: Trio) -> dict[str, Done]:
    """What planning by both methods says, by the module that is imported first."""
    arguments = [shared_trio.folder / "recipe.yml", shared_trio.folder / "out"]
    return run_all(
        {first: Job(f"import {first}\n" + PLAN_BOTH_WAYS, arguments) for first in FIRST_IMPORTS}
    )


@pytest.mark.parametrize("first", FIRST_IMPORTS)
def test_both_methods_are_registered_and_planned_whatever_is_imported_first(first, planned):
    # Progress bars of the planner go to standard error.
    done = planned[first]
    assert (done.returncode, done.stdout) == (0, "planned\n"), done.stderr


@pytest.mark.parametrize("first", ["torch", "mergekit.scripts.merge_raw_pytorch"])
def test_the_same_in_a_process_of_its_own(first, shared_trio):
    recipe, out = shared_trio.folder / "recipe.yml", shared_trio.folder / "out"
    assert python(f"import {first}\n" + PLAN_BOTH_WAYS, recipe, out) == "planned"


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
    # Reading a switch and escaping a name take the standard library alone.
    light = ("mergekit_ram", "autoload", "switches", "text")
    ours = [light[0], *(f"{light[0]}.{name}" for name in light[1:]), "mergekit_ram_hook"]
    assert python(code) == f"[] {ours}"


def test_the_hook_imports_the_standard_library_and_wrapt_alone():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import mergekit_ram\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    assert python(code) == "['mergekit_ram', 'wrapt']"
