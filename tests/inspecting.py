"""``mergekit-ram inspect`` run on the tests' models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result
from models import forget_loaded_models

from mergekit_ram.cli import main
from mergekit_ram.record.schema import OverlapRecord


def run_inspect(config: dict[str, Any] | Path, folder: Path, *options: str) -> Result:
    source = config
    if isinstance(config, dict):
        source = folder / "inspect.yml"
        source.write_text(yaml.safe_dump(config))
    forget_loaded_models()
    return CliRunner().invoke(main, ["inspect", str(source), *options])


def inspected(config: dict[str, Any], folder: Path, *options: str) -> OverlapRecord:
    result = run_inspect(config, folder, "--quiet", "--json", "-", *options)
    assert result.exit_code == 0, result.output
    return OverlapRecord.model_validate_json(result.stdout)
