"""``mergekit-yaml`` where numba fails: the merge is made all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from models import Trio, read_weights
from reference import same_bits

YAML = "from mergekit.scripts.run_yaml import main; main()"


def merging(trio: Trio, out: str, cache: Path) -> subprocess.CompletedProcess[str]:
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    return subprocess.run(
        [sys.executable, "-c", YAML, str(recipe), str(trio.folder / out), "--no-copy-tokenizer"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )


def test_a_script_in_the_place_of_numba_costs_one_line_and_no_byte(trio: Trio, tmp_path: Path):
    (tmp_path / "numba.py").write_text("import sys\nsys.exit()\n")
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    done = subprocess.run(
        [sys.executable, "-c", YAML, str(recipe), "ill", "--no-copy-tokenizer"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "numba cannot be imported (SystemExit)" in done.stderr
    expected, merged = trio.merge("ram_plus"), read_weights(tmp_path / "ill")
    assert all(same_bits(merged[name], expected[name]) for name in expected)


def test_an_emptied_cache_costs_one_line_and_no_byte(trio: Trio, tmp_path: Path):
    cache = tmp_path / "cache"
    well = merging(trio, "well", cache)
    assert well.returncode == 0, well.stderr
    assert "compiled loops" not in well.stderr
    indices = list(cache.rglob("*.nbi"))
    assert indices
    for index in indices:
        index.write_bytes(b"")
    ill = merging(trio, "ill", cache)
    assert ill.returncode == 0, ill.stderr
    assert "Aborted" not in ill.stderr
    (line,) = [line for line in ill.stderr.splitlines() if "compiled loops" in line]
    assert "numba failed (Ran out of input)" in line
    expected, merged = read_weights(trio.folder / "well"), read_weights(trio.folder / "ill")
    assert expected.keys() == merged.keys()
    assert all(same_bits(merged[name], expected[name]) for name in expected)
