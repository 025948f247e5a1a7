"""The project's documents, and what stands in them between fences."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

from click.testing import CliRunner

from mergekit_ram.cli import main

ROOT = Path(__file__).parents[2]
OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1"}


def document(name: str) -> str:
    """The text of a document, by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced blocks of one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in fenced if name == language]


def commands(text: str) -> list[str]:
    """Every line of the blocks of shell commands."""
    return [line for block in blocks(text, "sh") for line in block.splitlines()]


def run_ours(arguments: list[str]) -> str:
    """What ``mergekit-ram`` with these arguments prints, run in the root."""
    with chdir(ROOT):
        result = CliRunner().invoke(main, [*arguments, "--quiet"])
    assert result.exit_code == 0, result.output
    return result.stdout


def printed_by(code: str) -> str:
    """What Python code prints."""
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    return printed.getvalue()


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    """Run in another folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def arguments_of(command: str) -> list[str]:
    return shlex.split(command)[1:]
