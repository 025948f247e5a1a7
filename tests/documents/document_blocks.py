"""The project's documents, and what stands in them between fences."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

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
    command = [sys.executable, "-m", "mergekit_ram.cli", *arguments, "--quiet"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=OFFLINE
    )
    return result.stdout


def arguments_of(command: str) -> list[str]:
    return shlex.split(command)[1:]
