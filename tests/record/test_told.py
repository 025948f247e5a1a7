"""What an ordinary merge says when it is done."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from models import Trio, run_yaml, succeed, write_weights

from mergekit_ram.names import labels


def said(
    trio: Trio, caplog: pytest.LogCaptureFixture, *options: str, method: str = "ram_plus"
) -> list[str]:
    """What the plugin logs of a merge at the level that mergekit's commands set."""
    caplog.clear()
    with caplog.at_level(logging.INFO if "-v" in options else logging.WARNING):
        # The level is that of the log alone, which lets through what a logger of its own allows.
        caplog.handler.setLevel(logging.NOTSET)
        config = trio.config(method)
        succeed(run_yaml(config, trio.folder / "out", "--no-copy-tokenizer", *options))
    return [record.message for record in caplog.records if record.name.startswith("mergekit_ram")]


def test_a_command_ends_with_a_line_per_agent(trio: Trio):
    recipe = trio.folder / "merge.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    command = [sys.executable, "-m", "mergekit.scripts.run_yaml", str(recipe)]
    done = subprocess.run(
        [*command, str(trio.folder / "out"), "--no-copy-tokenizer"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Also where mergekit draws a bar, a line of ours begins a line, and has one name.
    assert "mergekit_ram.merge" not in done.stderr
    lines = re.findall(r"^INFO:mergekit_ram:(.*)", done.stderr, re.MULTILINE)
    assert [line.split(":")[0] for line in lines] == ["agent coder", "agent tool", "agent memory"]


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
def test_an_ordinary_merge_ends_with_a_line_per_agent_and_finding(trio: Trio, caplog, method):
    coder, tool, memory = trio.agents
    write_weights(Path(memory), trio.base, Path(trio.base_path))
    lines = said(trio, caplog, method=method)
    start = f"{memory} equals the base within ε"
    assert sum(line.startswith(start) for line in lines) == 1
    told = [line for line in lines if "density" in line]
    assert len(told) == 3
    for name, line in zip(labels([coder, tool, memory]), told, strict=True):
        assert re.fullmatch(
            rf"agent {re.escape(name)}: density \d+\.\d\d %, shared [\d,]+, unique [\d,]+, "
            r"ρ [\d.]+, λ \d\.\d{4}",
            line,
        )


def test_findings_are_said_and_stand_in_the_card(trio: Trio, caplog):
    coder, tool, _ = map(Path, trio.agents)
    changed = {name: tensor + 1 for name, tensor in trio.base.items()}
    for path in (coder, tool):
        write_weights(path, changed, Path(trio.base_path))
    lines = said(trio, caplog)
    (finding,) = {line for line in lines if line.startswith(f"finding: Of what {coder} (")}
    card = (trio.folder / "out" / "README.md").read_text()
    assert "\nFindings:\n\n* " in card
    assert f"\n* {finding.removeprefix('finding: ')}\n" in card


def test_a_log_that_was_asked_for_says_nothing_twice_and_a_quiet_one_nothing(trio: Trio, caplog):
    assert len([line for line in said(trio, caplog, "-v") if "density" in line]) == 3
    (line,) = said(trio, caplog, "--quiet")
    assert line.startswith(f"output folder {trio.folder / 'out'}: replacing the model in it (")
