"""Recipes that mergekit's commands would refuse with a traceback, or read in part and be silent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from mergekit.scripts.merge_raw_pytorch import main as mergekit_pytorch
from models import Trio
from safetensors.torch import save_file

from mergekit_ram.cli import main
from mergekit_ram.errors import InputError
from mergekit_ram.plan.recipe import read_recipe

REPAIR = "Repair or re-download this checkpoint."


class Raw:
    """A base and an agent as single files, merged by ``mergekit-pytorch``."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.base, self.agent = folder / "base.safetensors", folder / "agent.safetensors"
        save_file({"w": torch.zeros(3)}, self.base)
        save_file({"w": torch.tensor([0.0, 1.0, 2.0])}, self.agent)

    def recipe(self, **settings: object) -> str:
        models = [{"model": str(self.agent)}]
        recipe = {"merge_method": "ram", "base_model": str(self.base), "models": models}
        return yaml.safe_dump(recipe | settings)

    def merge(self, recipe: str) -> Result:
        path = self.folder / "recipe.yml"
        path.write_text(recipe)
        return CliRunner().invoke(mergekit_pytorch, [str(path), str(self.folder / "out")])


@pytest.fixture
def raw(tmp_path):
    return Raw(tmp_path)


def said(result: Result) -> str:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    return result.output.strip().splitlines()[-1]


@pytest.mark.parametrize("key", ["dtype", "out_dtype"])
def test_a_raw_dtype_that_does_not_exist_is_refused_with_the_nearest(raw, key):
    assert said(raw.merge(raw.recipe(**{key: "bf16"}))) == (
        f"Error: `{key}: bf16` is no dtype that mergekit knows, as bfloat16, float16, float32, "
        "float64 are: did you mean 'bfloat16'?"
    )


def test_raw_files_are_refused_by_name(raw):
    raw.agent.write_bytes(raw.agent.read_bytes()[:20])
    assert f"model {raw.agent}: cannot read {raw.agent}: " in said(raw.merge(raw.recipe()))
    raw.agent.unlink()
    assert said(raw.merge(raw.recipe())) == (
        f"Error: model {raw.agent}: cannot read {raw.agent}: the file is missing. {REPAIR}"
    )
    assert not (raw.folder / "out").exists()


def test_raw_keys_at_the_wrong_level_are_warned_of(raw, caplog):
    models = [{"model": str(raw.agent), "weight": 2}]
    recipe = raw.recipe(epsilon=1e-3, slices=[], models=models, parameters={"wieght": 1})
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        result = raw.merge(recipe)
    assert result.exit_code == 0, result.output
    assert [r.message for r in caplog.records if "has no effect" in r.message] == [
        "key 'epsilon' at the top has no effect: write it under `parameters:` at the top",
        "key 'slices' at the top has no effect: ram does not know it; parameters stand under "
        "`parameters:`",
        f"key 'weight' beside `model: {raw.agent}` has no effect: write it under `parameters:` "
        "of that model",
        "parameter 'wieght' has no effect: ram does not know it; did you mean 'weight'?",
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"models": 3}, "models: Input should be a valid list"),
        ({"models": [{"path": "x"}]}, "models[0].model: Field required"),
        ({"base_model": "a+b+c"}, "Can't parse a+b+c"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(trio: Trio, settings, reason):
    path = trio.folder / "recipe.yml"
    path.write_text(yaml.safe_dump(trio.config("ram_plus") | settings))
    result = CliRunner().invoke(main, ["merge", str(path), str(trio.folder / "out")])
    assert said(result) == (
        f"Error: {path} cannot be read as a configuration of mergekit: {reason}. Give the YAML "
        "file of a merge."
    )


# Files that are no YAML


RECIPE = "merge_method: ram\nbase_model: b\nmodels: [{model: a}]\n"
UNREADABLE = {
    "a tab": (
        RECIPE.replace("b\n", "b\n\tx: 1\n", 1).encode(),
        "found character '\\t' that cannot",
    ),
    "a NUL": (RECIPE.encode() + b"\0", "special characters are not allowed"),
    "UTF-16": (RECIPE.encode("utf-16"), "'utf-8' codec can't decode byte 0xff"),
    "UTF-16 without a mark": (RECIPE.encode("utf-16-le"), "special characters are not allowed"),
    "Latin-1": (
        "# é\n".encode("latin-1") + RECIPE.encode(),
        "'utf-8' codec can't decode byte 0xe9",
    ),
    "two documents": (f"{RECIPE}---\n{RECIPE}".encode(), "expected a single document"),
    "a tag of Python": (
        f"{RECIPE}x: !!python/name:os.system\n".encode(),
        "could not determine a constructor for the tag",
    ),
    "a tag that does not fit": (f"{RECIPE}x: !!bool perhaps\n".encode(), "KeyError 'perhaps'"),
    "a bracket": (f"{RECIPE}x: [\n".encode(), "expected the node content"),
    "a list of methods": (
        RECIPE.replace("ram", "[ram]").encode(),
        "merge_method: Input should be a valid string",
    ),
    "a list": (b"- merge_method: 'ram_plus'\n", "the whole: Input should be a valid dictionary"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_file_that_is_no_recipe_is_refused_with_the_reason(tmp_path, what):
    path = tmp_path / "recipe.yml"
    data, reason = UNREADABLE[what]
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        read_recipe(path)
    assert_refused(f"Error: {error.value}", path, reason)


@pytest.mark.parametrize("command", ["inspect", "merge"])
def test_our_own_commands_refuse_them_too(tmp_path, command):
    path = tmp_path / "recipe.yml"
    data, reason = UNREADABLE["a tab"]
    path.write_bytes(data)
    out = [str(tmp_path / "out")] if command == "merge" else []
    line = said(CliRunner().invoke(main, [command, str(path), *out]))
    assert line.startswith(f"Error: {path} cannot be read as a configuration of mergekit: ")
    assert reason in line


def assert_refused(line: str, path: Path, reason: str) -> None:
    assert line.startswith(f"Error: {path} cannot be read as a configuration of mergekit: ")
    assert reason in line
    assert line.endswith(". Give the YAML file of a merge.")
