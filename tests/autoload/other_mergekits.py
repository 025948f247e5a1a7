"""Other mergekits than the one we know: an older release, and the known one with a part changed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

OLDER = "0.1.4"
OLDER_PACKAGES = (
    f"mergekit=={OLDER}",
    # What that release works with, and the tests' own environment does not have.
    "pydantic==2.10.6",
    "pydantic-core==2.27.2",
    "transformers==4.52.4",
    "tokenizers==0.21.1",
    "huggingface-hub==0.33.0",
)

RUN_METHODS = """
import logging, sys, yaml
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

settings = yaml.safe_load(open(sys.argv[1]))
for number, name in enumerate(("linear", "ram", "ram_plus", "linear")):
    base = {} if name == "linear" else {"base_model": sys.argv[3]}
    config = MergeConfiguration.model_validate({**settings, **base, "merge_method": name})
    options = MergeOptions(copy_tokenizer=False, quiet=True)
    try:
        run_merge(config, f"{sys.argv[2]}/{number}", options)
    except Exception as error:
        print(name, type(error).__name__, error)
    else:
        print(name, "merged")
"""


def fetch_older(folder: Path) -> Path:
    """Install the older release into a folder, for PYTHONPATH; this needs PyPI or a mirror."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    result = subprocess.run(
        [*command, "--target", str(folder), *OLDER_PACKAGES], capture_output=True, text=True
    )
    assert result.returncode == 0, f"mergekit {OLDER} could not be fetched:\n{result.stderr}"
    return folder


def renamed(folder: Path, old: str, new: str) -> Path:
    """A copy of the installed mergekit in which a name or a module has another name."""
    spec = importlib.util.find_spec("mergekit")
    assert spec is not None
    assert spec.origin is not None
    package = folder / "mergekit"
    shutil.copytree(Path(spec.origin).parent, package, ignore=shutil.ignore_patterns("*.pyc"))
    changed = 0
    for path in package.rglob("*.py"):
        text, times = re.subn(rf"\b{old}\b", new, path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
        changed += times
    for path in package.rglob(f"{old}.py"):
        path.rename(path.with_name(f"{new}.py"))
    assert changed, f"mergekit has no {old}"
    return folder


def python_with(mergekit: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python where this mergekit comes before the installed one."""
    path = os.pathsep.join(filter(None, (str(mergekit), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def write_recipe(path: Path, models: list[str], **settings: str) -> Path:
    """One that ``linear`` takes, and ours where it has a base as well."""
    parts = [{"model": model, "parameters": {"weight": 1.0}} for model in models]
    path.write_text(yaml.safe_dump({"merge_method": "linear", "models": parts} | settings))
    return path
