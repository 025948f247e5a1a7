"""A base and two agents of any architecture, changed on disk as trainers and people change them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import yaml
from architectures import build
from click.testing import CliRunner, Result
from models import (
    Weights,
    forget_loaded_models,
    make_agent,
    read_weights,
    run_yaml,
    succeed,
    write_weights,
)
from reference import same_bits

SHARES = {"coder": 0.1, "tool": 0.4}


class Family:
    """A base and two agents in a folder."""

    def __init__(self, folder: Path, architecture: str = "Qwen2"):
        self.folder = folder
        self.model = build(architecture)
        self.model.save_pretrained(folder / "base")
        self.base = read_weights(folder / "base")
        self.agents = {
            name: make_agent(folder / name, folder / "base", share, seed)
            for seed, (name, share) in enumerate(SHARES.items(), start=1)
        }

    def path(self, name: str) -> Path:
        return self.folder / name

    def config(self, **changes: Any) -> dict[str, Any]:
        return {
            "merge_method": "ram_plus",
            "base_model": str(self.path("base")),
            "models": [{"model": str(self.path(name))} for name in self.agents],
        } | changes

    def write(self, name: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Store other tensors in a model's folder."""
        write_weights(self.path(name), weights, self.path(name))

    def rename(self, name: str, new: Callable[[str], str]) -> None:
        """Store a model's tensors under other names."""
        own = self.base if name == "base" else self.agents[name]
        self.write(name, {new(key): tensor for key, tensor in own.items()})

    def configure(self, name: str, **settings: Any) -> None:
        """Change a model's ``config.json``; None takes a setting out."""
        path = self.path(name) / "config.json"
        found = json.loads(path.read_text()) | settings
        path.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))

    def run(self, *options: str, **changes: Any) -> Result:
        return run_yaml(
            self.config(**changes), self.path("out"), "--no-copy-tokenizer", "--quiet", *options
        )

    def merge(self, *options: str, **changes: Any) -> Weights:
        succeed(self.run(*options, **changes))
        return read_weights(self.path("out"))

    def refusal(self, *options: str, **changes: Any) -> str:
        """The one line in which both commands end, and nothing is left of either."""
        result = self.run(*options, **changes)
        assert result.exit_code == 1, result.output
        assert isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        assert not self.path("out").exists(), "something was written"
        line = result.output.splitlines()[-1]
        looked = self.inspect(*options, **changes)
        assert looked.exit_code == 1, looked.output
        assert looked.output.splitlines()[-1] == line
        return line

    def inspect(self, *options: str, **changes: Any) -> Result:
        from mergekit_ram.cli import main

        recipe = self.path("inspected.yml")
        recipe.write_text(yaml.safe_dump(self.config(**changes), sort_keys=False))
        forget_loaded_models()
        return CliRunner().invoke(
            main, ["inspect", str(recipe), "--quiet", "--json", "-", *options]
        )

    def findings(self, *options: str, **changes: Any) -> dict[str, str]:
        """What ``inspect`` finds, by code; the last one of a code."""
        result = self.inspect(*options, **changes)
        succeed(result)
        record = json.loads(result.stdout)
        return {finding["code"]: finding["text"] for finding in record["findings"]}

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path("out") / "ram_overlap.json").read_text())
        return found

    def expected(
        self, base: Weights | None = None, agents: Mapping[str, Weights] | None = None
    ) -> Weights:
        """RAM+ of the base and the agents by the naive reference, in the base's dtypes."""
        base = self.base if base is None else base
        floating = {name: t for name, t in base.items() if t.is_floating_point()}
        merged = reference.merge(floating, agents or self.agents, r=0.1)
        return base | {name: tensor.to(base[name].dtype) for name, tensor in merged.items()}


def assert_weights(written: Weights, expected: Mapping[str, torch.Tensor]) -> None:
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same_bits(written[name], tensor), name


@contextmanager
def warnings_of(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Within it, our warnings are collected."""
    found: list[str] = []
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        yield found
    found += [r.getMessage() for r in caplog.records if r.name == "mergekit_ram"]
