"""Switching the plugin off and on, and a mergekit that it does not know."""

from __future__ import annotations

import pytest
import reference
import torch
from processes import PLAN_BOTH_WAYS, python
from reference import same_bits

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
