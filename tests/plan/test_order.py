"""Nothing in a merge depends on the order of a set: same bytes and messages for every hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from families import Family

SEEDS = range(6)

MERGE = """
import sys
from mergekit.scripts import merge_raw_pytorch, run_yaml
recipe, raw, out, raw_out = sys.argv[1:]
quiet = ["--quiet", "--no-copy-tokenizer", "--out-shard-size", "20K"]
run_yaml.main([recipe, out, *quiet], standalone_mode=False)
merge_raw_pytorch.main([raw, raw_out, "--tensor-intersection"], standalone_mode=False)
"""


def merged(family: Family, seed: int) -> tuple[dict[str, str], list[str]]:
    """Digests of what two commands write, and what this package says."""
    out, raw = family.path(f"out{seed}"), family.path(f"raw{seed}")
    recipes = [family.path("merge.yml"), family.path("raw.yml")]
    done = subprocess.run(
        [sys.executable, "-c", MERGE, *map(str, (*recipes, out, raw))],
        env=os.environ | {"PYTHONHASHSEED": str(seed), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    files = sorted(file for folder in (out, raw) for file in folder.glob("*"))
    digests = {
        str(file.relative_to(family.folder)).replace(f"{seed}/", "/"): digest(file)
        for file in files
        if file.suffix == ".safetensors" or file.name.endswith((".index.json", "config.json"))
    }
    lines = [line for line in done.stderr.splitlines() if ":mergekit_ram:" in line]
    return digests, [line.replace(str(out), "OUT").replace(str(raw), "OUT") for line in lines]


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.slow
def test_every_hash_seed_gives_the_same_bytes_and_messages(tmp_path):
    family = Family(tmp_path, "Qwen3-MoE")
    extra = {f"heads.{name}.weight": torch.ones(2).bfloat16() for name in "abcdefgh"}
    for name, own in family.agents.items():
        family.write(name, own | extra)
    parameters = {"epsilom": 1, "wieght": 1, "densty": 2}
    config = family.config(parameters=parameters, dtype="float16")
    family.path("merge.yml").write_text(yaml.safe_dump(config))
    files = {
        name: str(family.path(name) / "model.safetensors") for name in ("base", *family.agents)
    }
    raw = {"base_model": files.pop("base"), "models": [{"model": file} for file in files.values()]}
    family.path("raw.yml").write_text(yaml.safe_dump({**config, **raw}))
    first, *others = [merged(family, seed) for seed in SEEDS]
    assert len(first[0]) > 5
    assert len(first[1]) > 5
    assert all(other == first for other in others)
