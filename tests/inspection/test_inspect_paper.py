"""The paper's overlaps, made in a tiny model and inspected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from inspecting import run_inspect
from models import make_base, write_weights

PAPER = {
    "coding": (6.3, 49.1, 44.6),
    "tool": (40.8, 56.1, 3.1),
    "memory": (47.5, 49.9, 2.6),
}
PAPER_RESCALE = {"coding": 1.200, "tool": 1.145, "memory": 1.111}


def paper_agents(folder: Path) -> dict[str, Any]:
    """Three agents whose overlaps are the paper's, in a random arrangement."""
    base = make_base(folder / "base", dtype=torch.float32, vocab_size=1024)
    total = sum(tensor.numel() for tensor in base.values())
    active = {"coding": 0.032 * total}
    triple = active["coding"] * PAPER["coding"][2] / 100
    for name in ("tool", "memory"):
        active[name] = triple / (PAPER[name][2] / 100)
    pairs = {name: active[name] * PAPER[name][1] / 100 for name in PAPER}
    half = sum(pairs.values()) / 2
    regions = {
        ("coding", "tool", "memory"): triple,
        ("coding", "tool"): half - pairs["memory"],
        ("coding", "memory"): half - pairs["tool"],
        ("tool", "memory"): half - pairs["coding"],
        **{(name,): active[name] * PAPER[name][0] / 100 for name in PAPER},
    }
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    changed = {name: torch.zeros(total, dtype=torch.bool) for name in PAPER}
    start = 0
    for names, size in regions.items():
        stop = start + max(0, round(size))
        for name in names:
            changed[name][order[start:stop]] = True
        start = stop
    for name, mask in changed.items():
        weights, place = {}, 0
        for key, tensor in base.items():
            own = mask[place : place + tensor.numel()].view(tensor.shape)
            weights[key] = torch.where(own, tensor + 1e-3, tensor)
            place += tensor.numel()
        write_weights(folder / name, weights, folder / "base")
    return {
        "merge_method": "ram_plus",
        "base_model": str(folder / "base"),
        "models": [{"model": str(folder / name)} for name in PAPER],
    }


def test_the_papers_overlaps_are_printed_with_the_papers_factors(tmp_path):
    config = paper_agents(tmp_path)
    text = run_inspect(config, tmp_path, "--quiet").output
    lines = {
        (row[0], number): row
        for number, row in enumerate(line.split() for line in text.splitlines())
        if row and row[0] in PAPER
    }
    for name, percentages in PAPER.items():
        rows = [row for (found, _), row in sorted(lines.items()) if found == name]
        assert rows[0][6] == f"{PAPER_RESCALE[name]:.3f}"
        printed = [float(cell) for cell in rows[1][1:] if cell != "%"]
        assert printed == pytest.approx(percentages, abs=0.1)
