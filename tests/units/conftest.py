"""A merge of several units, and what an undisturbed merge of it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from models import Trio, Weights, read_weights, run_yaml, succeed

SHARD_SIZE = "8K"
"""Makes half a dozen shards of the tiny models."""


@dataclass(frozen=True)
class Undisturbed:
    """Recipe and result of a merge by mergekit-yaml."""

    trio: Trio
    recipe: Path
    folder: Path
    weights: Weights


@pytest.fixture(scope="session", params=["ram_plus", "ram"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory) -> Undisturbed:
    """A merge of each method by ``mergekit-yaml``."""
    return _merged(request.param, tmp_path_factory.mktemp("units"))


@pytest.fixture(scope="session")
def plus(tmp_path_factory) -> Undisturbed:
    """A merge of ``ram_plus``, whose units count, by ``mergekit-yaml``."""
    return _merged("ram_plus", tmp_path_factory.mktemp("units"))


@pytest.fixture(scope="session")
def over_directions(tmp_path_factory) -> Undisturbed:
    """The same by ``ram_directions``."""
    return _merged("ram_directions", tmp_path_factory.mktemp("units"))


def _merged(method: str, folder: Path) -> Undisturbed:
    trio = Trio(folder)
    config = trio.config(method)
    out = folder / "plain"
    succeed(run_yaml(config, out, "--no-copy-tokenizer", "--out-shard-size", SHARD_SIZE))
    recipe = folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(config, sort_keys=False))
    return Undisturbed(trio, recipe, out, read_weights(out))
