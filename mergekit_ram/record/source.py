"""Tells a record from a recipe, without reading either as one."""

from __future__ import annotations

from pathlib import Path

from mergekit_ram.record.bounded import read_json


def is_record(source: Path) -> bool:
    """Whether a path is to be shown again, and no recipe: YAML may well be JSON too."""
    if source.is_dir():
        return True
    try:
        found = read_json(source)
    except (OSError, ValueError):
        return source.suffix == ".json"
    if not isinstance(found, dict):
        return source.suffix == ".json"
    is_recipe = "merge_method" in found and "agents" not in found
    return not is_recipe and (source.suffix == ".json" or "schema_version" in found)
