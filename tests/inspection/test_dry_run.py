"""``mergekit-ram inspect`` warns of what the merge would warn of, and refuses what it would."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from inspecting import run_inspect
from models import Trio, run_yaml

METHOD_HINTS = [
    ("ramplus", "did you mean 'ram_plus'?"),
    ("RAM+", "did you mean 'ram_plus'?"),
    ("ram-plus", "did you mean 'ram_plus'?"),
    ("Ram", "did you mean 'ram'?"),
    ("tie", "did you mean 'ties'?"),
]


@pytest.mark.parametrize(("method", "hint"), METHOD_HINTS)
def test_a_method_that_does_not_exist_is_refused_with_the_nearest(trio: Trio, method, hint):
    config = trio.config(method)
    line = f"Error: Unimplemented merge method {method}: {hint}\n"
    inspection = run_inspect(config, trio.folder, "--quiet")
    assert (inspection.exit_code, inspection.output) == (1, line)
    merge = run_yaml(config, trio.folder / "out")
    assert merge.exit_code == 1
    assert merge.output.splitlines()[-1] == line.rstrip()
    assert not (trio.folder / "out").exists()


def test_a_method_like_no_other_is_refused_with_all_there_are(trio: Trio):
    result = run_inspect(trio.config("qqqqqqqq"), trio.folder, "--quiet")
    assert result.exit_code == 1
    assert result.output.startswith("Error: Unimplemented merge method qqqqqqqq: there are ")
    assert "linear" in result.output
    assert "ram_plus" in result.output


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package warned of, each as often as it did."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "mergekit_ram" and record.levelno >= logging.WARNING
    ]


def with_model_parameter(trio: Trio, method: str, **parameters: Any) -> dict[str, Any]:
    config = trio.config(method)
    config["models"][0]["parameters"] = parameters
    return config


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
def test_an_inspection_warns_of_what_the_merge_warns_of_once(trio: Trio, caplog, method):
    config = with_model_parameter(trio, method, epsilon=1e-4, wieght=2.0)
    config |= {"parameters": {"r": 0.2, "epsylon": 1e-3}, "dtype": "float16"}
    merged = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    assert merged.exit_code == 0, merged.output
    by_merge = said(caplog)
    caplog.clear()
    inspected = run_inspect(config, trio.folder, "--quiet")
    assert inspected.exit_code == 0, inspected.output
    by_inspection = said(caplog)
    assert len(by_inspection) == len(set(by_inspection))
    # Whose the name `ram` is a process hears only once.
    ours = "is that of mergekit-ram"
    assert sorted(text for text in by_inspection if ours not in text) == sorted(
        text for text in by_merge if ours not in text
    )
    text = "\n".join(by_inspection)
    assert "parameter 'epsylon' has no effect" in text
    assert "parameter 'wieght' has no effect" in text
    assert "parameter 'epsilon' has no effect under a model" in text
    assert "rounded to torch.float16 by `dtype:`" in text
    assert ("parameter 'r' has no effect: ram does not know it" in text) == (method == "ram")


def test_unknown_parameters_of_other_methods_are_told_too(trio: Trio, caplog):
    config = trio.config("ties", parameters={"weight": 1.0, "densty": 0.5, "epsilon": 1.0})
    assert run_inspect(config, trio.folder, "--quiet").exit_code == 0
    assert said(caplog) == [
        "parameter 'densty' has no effect: ties does not know it; did you mean 'density'?",
        next(text for text in said(caplog) if "'epsilon'" in text),
    ]


def test_what_ram_plus_would_leave_undone_is_not_said_of_another_method(trio: Trio, caplog):
    config = trio.config("slerp", parameters={"t": 0.5})
    config["models"] = [{"model": next(iter(trio.agents))}, {"model": trio.base_path}]
    assert run_inspect(config, trio.folder, "--quiet").exit_code == 0
    assert said(caplog) == []
    config = trio.config("ram", models=config["models"][:1])
    assert run_inspect(config, trio.folder, "--quiet").exit_code == 0
    assert len([text for text in said(caplog) if "is merged alone" in text]) == 1


def test_what_mergekit_refuses_of_another_method_is_refused_in_one_line(trio: Trio):
    config = trio.config("linear")  # every model needs a weight
    result = run_inspect(config, trio.folder, "--quiet")
    assert result.exit_code == 1
    assert result.output.startswith("Error: mergekit refuses the merge by linear: ")
    assert "weight" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
@pytest.mark.parametrize("parameters", [{"epsilon": -1}, {"scale": "much"}, {"overlap_power": 2}])
def test_a_refusal_is_the_merges_own(trio: Trio, method, parameters):
    config = trio.config(method, parameters=parameters)
    merge = run_yaml(config, trio.folder / "out")
    inspection = run_inspect(config, trio.folder, "--quiet")
    assert (merge.exit_code, inspection.exit_code) == (1, 1)
    assert inspection.output.splitlines()[-1] == merge.output.splitlines()[-1]


def test_counts_that_are_none_of_this_plan_are_refused_as_by_the_merge(trio: Trio, tmp_path: Path):
    missing = tmp_path / "nowhere.json"
    config = trio.config("ram_plus", parameters={"statistics": str(missing)})
    merge = run_yaml(config, trio.folder / "out")
    inspection = run_inspect(config, trio.folder, "--quiet")
    assert inspection.exit_code == 1
    assert f"{missing} cannot be read as a record of overlaps" in inspection.output
    assert inspection.output.splitlines()[-1] == merge.output.splitlines()[-1]


def test_a_merge_that_overflows_is_refused_by_the_inspection(trio: Trio):
    config = trio.config("ram_plus", out_dtype="float16", parameters={"scale": 1e8})
    merge = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    inspection = run_inspect(config, trio.folder, "--quiet")
    assert "does not fit torch.float16" in inspection.output
    assert inspection.output.splitlines()[-1] == merge.output.splitlines()[-1]
