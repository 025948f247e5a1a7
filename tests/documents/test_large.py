"""docs/large.md shows what its simulation prints."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from benchmarks import growth

DOCUMENT = Path(__file__).parents[2] / "docs" / "large.md"


def test_the_table_of_growth_is_what_the_simulation_prints():
    result = CliRunner().invoke(growth.main, [])
    assert result.exit_code == 0
    assert result.output in DOCUMENT.read_text(encoding="utf-8")
