"""Switching the plugin off and on, and a mergekit that it does not know."""

from __future__ import annotations

import pytest
import reference
import torch
from forks import Job, run_all
from processes import PLAN_BOTH_WAYS, python
from reference import same_bits

OWNER = (
    "from mergekit import merge_methods; names = [m.spec.name for m in "
    "merge_methods.registered_methods()]\n"
    "print(type(merge_methods.get('ram')).__module__, 'ram_plus' in names)"
)


OURS = "mergekit_ram.methods True"


THEIRS = "mergekit.merge_methods.base False"


ENVIRONMENT = "import os; os.environ[{!r}] = {!r}\n"
DISABLED = ENVIRONMENT.format("MERGEKIT_RAM_DISABLE", "1")
UNHOOKED = ENVIRONMENT.format("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


@pytest.mark.parametrize(("value", "owner"), [("1", THEIRS), ("0", OURS)])
def test_the_environment_switches_everything_off(value, owner):
    assert python(OWNER, MERGEKIT_RAM_DISABLE=value) == owner


def test_off_in_the_environment_is_off_and_so_is_torchs_own_switch():
    codes = {
        "true": ENVIRONMENT.format("MERGEKIT_RAM_DISABLE", "true") + OWNER,
        "nothing": ENVIRONMENT.format("MERGEKIT_RAM_DISABLE", "") + OWNER,
        "imported": DISABLED + "import mergekit_ram\n" + OWNER,
        "installed": DISABLED + "import mergekit_ram; print(mergekit_ram.install())",
        "unhooked": UNHOOKED + OWNER,
    }
    done = run_all({name: Job(code) for name, code in codes.items()})
    assert {name: result.stdout.strip() for name, result in done.items()} == {
        "true": THEIRS,
        "nothing": OURS,
        "imported": THEIRS,
        "installed": "False",
        "unhooked": THEIRS,
    }


def test_importing_the_package_switches_on_where_torchs_autoload_is_off(shared_trio):
    arguments = (shared_trio.folder / "recipe.yml", shared_trio.folder / "out")
    imports = (
        "import mergekit_ram\n",
        "import mergekit.merge\nimport mergekit_ram\n",
        "import mergekit.merge_methods\nfrom mergekit_ram import RamMerge\n",
    )
    code = OWNER + "\n" + PLAN_BOTH_WAYS
    done = run_all({first: Job(UNHOOKED + first + code, arguments) for first in imports})
    assert {result.stdout for result in done.values()} == {f"{OURS}\nplanned\n"}, done


def test_installing_twice_is_harmless_and_can_be_undone():
    code = """
import mergekit.plan, mergekit.scripts.merge_raw_pytorch as raw
from mergekit import merge_methods
from mergekit.merge_methods import registry
import mergekit_ram

mergekit_ram.uninstall()
before = dict(registry._METHODS), registry.get, merge_methods.get
plan, flat = mergekit.plan.MergePlanner._plan, raw.plan_flat_merge
assert 'ram_plus' not in before[0]
for _ in range(3):
    assert mergekit_ram.install() and mergekit_ram.install()
    ours = merge_methods.get('ram_plus')
    assert merge_methods.get('ram_plus') is ours
    assert mergekit.plan.MergePlanner._plan is not plan
    assert raw.plan_flat_merge is not flat
    assert vars(mergekit.plan.MergePlanner)['_plan'].__wrapped__ is plan
    mergekit_ram.uninstall()
    mergekit_ram.uninstall()
    assert (dict(registry._METHODS), registry.get, merge_methods.get) == before
    assert mergekit.plan.MergePlanner._plan is plan
    assert raw.plan_flat_merge is flat
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


UNREADABLE = "import mergekit.merge, sys; sys.modules['mergekit_ram.kernels.ram'] = None\n"
CHANGED = "import mergekit.plan\ndel mergekit.plan.MergePlanner._plan\n"
VERSIONS = ("0.1.4", "0.2.0", "1.0")


@pytest.fixture(scope="module")
def refused() -> dict[str, list[str]]:
    """What our methods are refused with, by a version of mergekit or what else is strange."""
    codes = {version: WITH_VERSION.format(version=version) for version in VERSIONS}
    codes |= {"changed": CHANGED, "unreadable": UNREADABLE}
    done = run_all({name: Job(code + REFUSAL) for name, code in codes.items()})
    return {name: result.stdout.splitlines() for name, result in done.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_another_mergekit_is_refused_with_both_versions_and_its_own_ram_is_not_used(
    version, refused
):
    refusal = (
        "HostError mergekit-ram 0.1.0 works with mergekit >= 0.1.5, < 0.2; installed is "
        f"mergekit {version}. Install a matching pair of versions."
    )
    assert refused[version] == [refusal] * 2


def test_a_changed_planner_is_refused_when_a_merge_is_planned(refused):
    assert len(refused["changed"]) == 2
    assert refused["changed"][0].startswith(
        "HostError mergekit-ram 0.1.0 does not find mergekit.plan.MergePlanner._plan in mergekit "
        "0.1.5"
    )


def test_a_part_of_ours_that_cannot_be_imported_is_no_fault_of_mergekit(refused):
    for line in refused["unreadable"]:
        assert line.startswith("HostError mergekit-ram 0.1.0 cannot be imported: ")
        assert "mergekit_ram.kernels.ram" in line
    assert len(refused["unreadable"]) == 2


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
