"""Tells a record from a recipe, without reading either as one."""

from __future__ import annotations

import json
from pathlib import Path


def is_record(source: Path) -> bool:
    """Whether a path is to be shown again, and no recipe: YAML may well be JSON too."""
    if source.is_dir():
        return True
    try:
        found = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return source.suffix == ".json"
    if not isinstance(found, dict):
        return source.suffix == ".json"
    is_recipe = "merge_method" in found and "agents" not in found
    return not is_recipe and (source.suffix == ".json" or "schema_version" in found)
