"""Keys where mergekit does not look, dtypes that it does not know, merges that do nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mergekit.merge_methods import get
from models import Trio, run_yaml, succeed

from mergekit_ram.cli import main
from mergekit_ram.errors import InputError
from mergekit_ram.plan import warnings
from mergekit_ram.plan.recipe import check_dtype, misplaced_keys


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.message
        for record in caplog.records
        if record.name == "mergekit_ram" and record.levelno == logging.WARNING
    ]


def merged(config: dict[str, Any], folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of a merge but those on the method's owner and on the folder."""
    caplog.clear()
    succeed(run_yaml(config, folder, "--no-copy-tokenizer"))
    left_out = ("merge method 'ram' is that of", "output folder")
    return [text for text in warnings_of(caplog) if not text.startswith(left_out)]


def inspected(config: dict[str, Any], folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    (folder / "inspect.yml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(
        main, ["inspect", str(folder / "inspect.yml"), "--quiet", "--no-realised"]
    )
    assert result.exit_code == 0, result.output
    return warnings_of(caplog)


def beside_model(config: dict[str, Any]) -> None:
    config["models"][0]["weight"] = 0.5


def at_the_top(config: dict[str, Any]) -> None:
    config["r"] = 0.2


def weight_at_the_top(config: dict[str, Any]) -> None:
    config["weight"] = 0.2


def dtype_of_a_model(config: dict[str, Any]) -> None:
    config["models"][1]["out_dtype"] = "float32"


def misspelt(config: dict[str, Any]) -> None:
    config["outdtype"] = "float32"


def misspelt_filter(config: dict[str, Any]) -> None:
    config["parameters"] = {"r": [{"fliter": "mlp", "value": 0.2}]}


def in_slices(config: dict[str, Any]) -> None:
    models = [*config.pop("models"), {"model": config["base_model"]}]
    sources = [{**model, "layer_range": [0, 2]} for model in models]
    sources[2]["weight"] = 0.5
    config["slices"] = [{"sources": sources, "alpha": 1.0, "layer_range": [0, 2]}]


def in_tokenizer(config: dict[str, Any]) -> None:
    config["tokenizer"] = {"sourc": "union", "tokens": {"<x>": {"source": {"kind": "zero"}}}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            beside_model,
            ["key 'weight' beside `model: {coder}` has no effect: write it under `parameters:` "
             "of that model"],
        ),
        (
            at_the_top,
            ["key 'r' at the top has no effect: write it under `parameters:` at the top"],
        ),
        (
            weight_at_the_top,
            ["key 'weight' at the top has no effect: write it under `parameters:` of a model, or "
             "of all of them at the top"],
        ),
        (
            dtype_of_a_model,
            ["key 'out_dtype' beside `model: {tool}` has no effect: it belongs at the top"],
        ),
        (misspelt, ["key 'outdtype' at the top has no effect: did you mean 'out_dtype'?"]),
        (
            misspelt_filter,
            ["key 'fliter' in parameter `r` 1 has no effect: did you mean 'filter'?"],
        ),
        (
            in_slices,
            ["key 'alpha' in slice 1 has no effect: write it under `parameters:` at the top",
             "key 'layer_range' in slice 1 has no effect: it belongs in a source",
             "key 'weight' beside `model: {memory}` has no effect: write it under `parameters:` "
             "of that model"],
        ),
        (in_tokenizer, ["key 'sourc' in tokenizer has no effect: did you mean 'source'?"]),
    ],
)  # fmt: skip
def test_a_misplaced_key_is_told_with_its_place(change, expected):
    names = ("coder", "tool", "memory")
    config = {"base_model": "base", "models": [{"model": name} for name in names]}
    change(config)
    named = {name: name for name in names}
    found = [*misplaced_keys(config, get("ram_plus").spec)]
    assert found == [text.format(**named) for text in expected]


def test_merging_and_inspecting_tell_of_misplaced_keys(trio: Trio, caplog, tmp_path):
    config = trio.config("ram_plus", r=0.2)
    expected = ["key 'r' at the top has no effect: write it under `parameters:` at the top"]
    assert merged(config, tmp_path / "out", caplog) == expected
    assert inspected(config, tmp_path, caplog) == expected


def test_a_recipe_as_it_should_be_gives_no_warning(trio: Trio, caplog, tmp_path):
    config = trio.config(
        "ram_plus",
        out_dtype="float32",
        tokenizer={"source": "base"},
        parameters={"r": [{"filter": "mlp", "value": 0.2}, {"value": 0.1}], "alpha": [1, 2]},
    )
    config["models"][0]["parameters"] = {"weight": 0.5}
    del config["tokenizer"]
    assert merged(config, tmp_path / "out", caplog) == []


def test_other_methods_are_left_to_mergekit(trio: Trio, caplog, tmp_path):
    config = trio.config("linear", parameters={"weight": 1.0}, r=0.1)
    assert merged(config, tmp_path / "out", caplog) == []


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("dtype", "bf16", "did you mean 'bfloat16'?"),
        ("dtype", "flaot32", "did you mean 'float32'?"),
        ("out_dtype", "int4", "see torch's names of dtypes."),
    ],
)
def test_an_unknown_dtype_is_refused_with_the_nearest(key, value, hint):
    with pytest.raises(InputError) as error:
        check_dtype(f"{key}: ", value)
    assert str(error.value) == (
        f"`{key}: {value}` is no dtype that mergekit knows, as bfloat16, float16, float32, "
        f"float64 are: {hint}"
    )


def test_merging_and_inspecting_refuse_an_unknown_dtype_in_one_line(trio: Trio, tmp_path):
    config = trio.config("ram", out_dtype="int4")
    expected = (
        "Error: `out_dtype: int4` is no dtype that mergekit knows, as bfloat16, float16, "
        "float32, float64 are: see torch's names of dtypes."
    )
    result = run_yaml(config, tmp_path / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == expected
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
    (tmp_path / "inspect.yml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "inspect.yml"), "--quiet"])
    assert (result.exit_code, result.output) == (1, expected + "\n")


def test_merges_that_do_nothing_are_warned_of(trio: Trio, caplog, tmp_path):
    base, (coder, *_) = trio.base_path, trio.agents
    alone = trio.config("ram", models=[{"model": coder}])
    (text,) = merged(alone, tmp_path / "out", caplog)
    assert text == (
        f"{coder} is merged alone: with one agent nothing overlaps, and the merge is that agent, "
        "but for changes within epsilon."
    )
    for name in ("weight", "scale"):
        (text,) = merged(trio.config("ram_plus", parameters={name: 0}), tmp_path / "out", caplog)
        assert text == f"scale or every agent's weight is 0: the merge is the base {base}."
    others = trio.config("ram_plus")
    for model in others["models"][1:]:
        model["parameters"] = {"weight": 0}
    (text,) = merged(others, tmp_path / "out", caplog)
    assert text.startswith(f"{coder} is merged alone: with one agent nothing overlaps")
    assert merged(trio.config("ram_plus"), tmp_path / "out", caplog) == []


def test_a_large_rescale_is_warned_of_in_merge_and_inspection(trio: Trio, caplog, tmp_path):
    coder = next(iter(trio.agents))
    config = trio.config("ram_plus", parameters={"r": 5.0})
    (text,) = [text for text in merged(config, tmp_path / "out", caplog) if "λ of" in text]
    assert text.startswith(f"λ of {coder} (")
    assert all(name in text for name in trio.agents)
    assert "Take a smaller r or alpha (the defaults are 0.1 and 2)" in text
    (tmp_path / "inspect.yml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "inspect.yml"), "--quiet"])
    said = " ".join(result.output.split())  # long lines are broken
    assert f"* λ of {coder} (" in said
    assert "the unique updates are exaggerated" in said


def test_that_ram_is_ours_is_said_aloud_once(trio: Trio, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr(warnings, "_announced", set())
    for number in range(2):
        caplog.clear()
        succeed(run_yaml(trio.config("ram"), tmp_path / "out", "--no-copy-tokenizer"))
        told = [text for text in warnings_of(caplog) if "in place of mergekit's own" in text]
        assert len(told) == (1 if number == 0 else 0)
    assert warnings.QUIET_VARIABLE == "MERGEKIT_RAM_QUIET"
    monkeypatch.setattr(warnings, "_announced", set())
    monkeypatch.setenv("MERGEKIT_RAM_QUIET", "1")
    caplog.clear()
    succeed(run_yaml(trio.config("ram"), tmp_path / "out", "--no-copy-tokenizer"))
    assert not any("mergekit's own" in text for text in warnings_of(caplog))
