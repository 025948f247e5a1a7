"""What an ordinary merge says when it is done."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from models import Trio, write_weights

from mergekit_ram.names import labels


def said(trio: Trio, *options: str, method: str = "ram_plus") -> list[str]:
    """The lines of the plugin on the standard error of a merge, without their prefix."""
    recipe = trio.folder / "merge.yml"
    recipe.write_text(yaml.safe_dump(trio.config(method)))
    command = [sys.executable, "-m", "mergekit.scripts.run_yaml", str(recipe)]
    done = subprocess.run(
        [*command, str(trio.folder / "out"), "--no-copy-tokenizer", *options],
        capture_output=True,
        text=True,
        check=True,
    )
    # Also where mergekit draws a bar, a line of ours begins a line, and has one name.
    assert "mergekit_ram.merge" not in done.stderr
    return re.findall(r"^(?:INFO|WARNING):mergekit_ram:(.*)", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
def test_an_ordinary_merge_ends_with_a_line_per_agent_and_finding(trio: Trio, method):
    coder, tool, memory = trio.agents
    write_weights(Path(memory), trio.base, Path(trio.base_path))
    lines = said(trio, method=method)
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


def test_findings_are_said_and_stand_in_the_card(trio: Trio):
    coder, tool, _ = map(Path, trio.agents)
    changed = {name: tensor + 1 for name, tensor in trio.base.items()}
    for path in (coder, tool):
        write_weights(path, changed, Path(trio.base_path))
    lines = said(trio)
    (finding,) = {line for line in lines if line.startswith(f"finding: Of what {coder} (")}
    card = (trio.folder / "out" / "README.md").read_text()
    assert "\nFindings:\n\n* " in card
    assert f"\n* {finding.removeprefix('finding: ')}\n" in card


def test_a_log_that_was_asked_for_says_nothing_twice_and_a_quiet_one_nothing(trio: Trio):
    assert len([line for line in said(trio, "-v") if "density" in line]) == 3
    (line,) = said(trio, "--quiet")
    assert line.startswith(f"output folder {trio.folder / 'out'}: replacing the model in it (")
